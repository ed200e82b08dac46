#include "rudder/model/experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>

#include "rudder/base/check.h"
#include "rudder/model/branch.h"
#include "rudder/model/tensors.h"

namespace rudder::model {
namespace {

// [rows, width] numbers of four bytes, in a piece of scratch memory.
ops::View numbers_in(const ops::View& piece, tensor::DType dtype, int64_t rows, int64_t width) {
  return {piece.data, dtype, {rows, width}};
}

// Elements of act that hold so many numbers of four bytes, whatever act is.
int64_t four_byte_width(int64_t numbers) {
  return 2 * numbers;
}

// The neurons that a rank loads of each expert that it has some of.
Extent neurons_of(const Experts& mlp, ops::Rank rank) {
  return mlp.by_expert ? Extent{mlp.width} : Extent{mlp.width, ops::equal_share(mlp.width, rank)};
}

// Of a product of all experts a rank loads those of `held`.
void keep_experts(LinearModule& module, ops::Share held) {
  const size_t each = module.parts.size() / static_cast<size_t>(module.experts);
  for (size_t i = 0; i < module.parts.size(); ++i) {
    const auto expert = static_cast<int64_t>(i / each);
    if (expert >= held.begin && expert < held.begin + held.count) continue;
    for (Extent& rows : module.parts[i].rows) rows.share = {0, 0};
  }
  module.experts = held.count;
}

// Of a checkpoint with a tensor for each expert.
void list_apart(const Experts& mlp, int64_t hidden, const Experts::Names& names,
                ops::LinearWeight* gate_up, ops::LinearWeight* down, LayerTensors& out) {
  const Extent width = neurons_of(mlp, out.rank);
  std::vector<std::string> inner;
  std::vector<std::string> outer;
  for (int32_t e = 0; e < mlp.count; ++e) {
    inner.push_back(fmt::format("{}.{}.{}", names.experts, e, names.gate));
    inner.push_back(fmt::format("{}.{}.{}", names.experts, e, names.up));
    outer.push_back(fmt::format("{}.{}.{}", names.experts, e, names.down));
  }
  out.add_experts({inner.begin(), inner.end()}, width, hidden, mlp.count, mlp.bias, gate_up);
  out.add_experts({outer.begin(), outer.end()}, hidden, width, mlp.count, mlp.bias, down);
}

void list_norms(int64_t hidden, const Experts::Names& names, Experts::Weights* weights,
                LayerTensors& out) {
  using Weights = Experts::Weights;
  out.norms.push_back({.weight = {fmt::format("{}{}", out.prefix, names.router_norm), hidden},
                       .width = hidden,
                       .target = target_in(weights, &Weights::router_norm),
                       .has_offset = false,
                       .factor = 1 / std::sqrt(static_cast<float>(hidden))});
  out.add_norm(names.pre_norm, hidden, RmsNorm{}, target_in(weights, &Weights::pre_norm));
  out.add_norm(names.post_norm, hidden, RmsNorm{}, target_in(weights, &Weights::post_norm));
  out.add_norm(names.shared_post_norm, hidden, RmsNorm{},
               target_in(weights, &Weights::shared_post_norm));
}

// Rows in act as the product takes them; those that it has in F8E4M3 in `buffer`, with `scales`.
// There are more of them than tokens, for which Products has room.
Operand operand_of(ops::Ops& ops, const ops::LinearWeight& weight, const ops::View& x,
                   const ops::View& buffer, const ops::View& scales) {
  if (weight.input == ops::InputForm::kAct) return {.x = x, .scale = {}, .act = x};
  const int64_t rows = x.num_rows();
  Operand operand{.x = shaped(buffer, rows, weight.in),
                  .scale = {scales.data, tensor::DType::kF32, {rows}},
                  .act = x};
  operand.x.dtype = tensor::DType::kF8E4M3;
  ops.quantise({.x = x, .out = operand.x, .out_scale = operand.scale});
  return operand;
}

}  // namespace

void list_tensors(const Experts& mlp, int64_t hidden, const Experts::Names& names,
                  Experts::Weights* weights, LayerTensors& out) {
  using Weights = Experts::Weights;
  out.add_linear({names.router}, {mlp.count}, hidden, mlp.router.bias,
                 target_in(weights, &Weights::router));
  out.linears.back().use = ops::ProductUse::kRouter;
  if (mlp.router.correction) {
    out.add_vector(names.correction, mlp.count, target_in(weights, &Weights::correction));
  }
  if (mlp.router.scales_experts) {
    out.add_vector(names.expert_scales, mlp.count, target_in(weights, &Weights::expert_scales),
                   ValueKind::kGain);
  }
  if (mlp.own_norms) list_norms(hidden, names, weights, out);
  const Extent width = neurons_of(mlp, out.rank);
  ops::LinearWeight* const gate_up = target_in(weights, &Weights::gate_up);
  ops::LinearWeight* const down = target_in(weights, &Weights::down);
  const size_t first = out.linears.size();
  if (names.stacked_gate_up.empty()) {
    list_apart(mlp, hidden, names, gate_up, down, out);
  } else {
    const std::string of_gate_up = fmt::format("{}.{}", names.experts, names.stacked_gate_up);
    const std::string of_down = fmt::format("{}.{}", names.experts, names.down);
    const InStack of_two{.experts = mlp.count, .parts = 2, .form = names.stack_form};
    const InStack of_one{.experts = mlp.count, .form = names.stack_form};
    out.add_stacked_experts(of_gate_up, of_two, width, hidden, mlp.bias, gate_up);
    out.add_stacked_experts(of_down, of_one, hidden, width, mlp.bias, down);
  }
  for (LinearModule& module : std::span(out.linears).subspan(first)) {
    module.use = ops::ProductUse::kExperts;
    if (mlp.by_expert) keep_experts(module, ops::equal_share(mlp.count, out.rank));
  }
  if (mlp.shared_width == 0) return;
  const Extent shared{mlp.shared_width, ops::equal_share(mlp.shared_width, out.rank)};
  out.add_linear(names.shared_gate_up, {shared, shared}, hidden, false,
                 target_in(weights, &Weights::shared_gate_up));
  out.add_linear({names.shared_down}, {hidden}, shared, false,
                 target_in(weights, &Weights::shared_down));
  if (!mlp.shared_gate) return;
  out.add_linear({names.shared_gate}, {1}, hidden, false,
                 target_in(weights, &Weights::shared_gate));
  out.linears.back().use = ops::ProductUse::kRouter;
}

tap::Routing routing_of(const Experts& mlp) {
  const bool by_scores = mlp.router.kind == ops::RouterKind::kSigmoid || mlp.router.correction;
  return {.experts = mlp.count, .chosen = mlp.chosen, .by_scores = by_scores};
}

std::array<int64_t, 12> scratch_widths(const Experts& mlp) {
  const int64_t k = mlp.chosen;
  const int64_t shared = mlp.shared_width;
  return {mlp.count,
          four_byte_width(k),
          four_byte_width(k),
          k * mlp.width,
          k * mlp.width,
          four_byte_width(k),
          k * mlp.hidden,
          2 * shared,
          shared,
          shared == 0 ? 0 : mlp.hidden,
          mlp.shared_gate ? 1 : 0,
          mlp.own_norms ? mlp.hidden : 0};
}

namespace {

// Of the expert that every token has; empty without one.
struct Shared {
  ops::View out;
  ops::View gate;
};

// Behind the last product that takes `in` as it is: it may quantise it anew.
Shared run_shared(const Experts& mlp, const Experts::Weights& weights, const Operand& in,
                  const LayerStep& step, const Scratch<12>& scratch) {
  if (mlp.shared_width == 0) return {};
  const Products& products = step.products;
  Shared out;
  const ops::View gate_up =
      products.project(weights.shared_gate_up,
                       products.as_taken(weights.shared_gate_up, in, scratch[9]), scratch[7]);
  if (mlp.shared_gate) {
    out.gate = products.project(
        weights.shared_gate, products.as_taken(weights.shared_gate, in, scratch[9]), scratch[10]);
  }
  // An adapter reads rows in act.
  Operand activated = products.empty_operand(weights.shared_down, in.rows(), scratch[8]);
  const bool quantises = !activated.scale.empty() && !products.adapts(weights.shared_down);
  const ops::View act = shaped(scratch[8], in.rows(), weights.shared_down.in);
  step.ops.gated_act({.x = gate_up,
                      .activation = mlp.shared_activation,
                      .out = quantises ? activated.x : act,
                      .out_scale = quantises ? activated.scale : ops::View{},
                      .next = quantises ? &weights.shared_down : nullptr});
  if (!quantises) activated = products.operand_of(weights.shared_down, act, scratch[7]);
  out.out = products.project(weights.shared_down, activated, scratch[9]);
  return out;
}

// Of the choice for `x`, act, which nothing has made yet.
ops::RouteArgs route_of(const Experts& mlp, const Experts::Weights& weights, const ops::View& x,
                        const LayerStep& step, const Scratch<12>& scratch) {
  const int64_t tokens = x.num_rows();
  const bool is_adapted = step.products.adapts(weights.router);
  const Operand act{.x = x, .scale = {}, .act = x};
  const ops::View logits = is_adapted ? step.products.project(weights.router, act, scratch[0])
                                      : shaped(scratch[0], tokens, weights.router.out);
  return {.x = x,
          .router = is_adapted ? nullptr : &weights.router,
          .logits = logits,
          .correction = weights.correction,
          .kind = mlp.router.kind,
          .renormalises = mlp.router.renormalises,
          .scale = mlp.router.scale,
          .expert_scales = weights.expert_scales,
          .groups = mlp.router.groups,
          .kept_groups = mlp.router.kept_groups,
          .chosen = numbers_in(scratch[1], tensor::DType::kI32, tokens, mlp.chosen),
          .weights = numbers_in(scratch[2], tensor::DType::kF32, tokens, mlp.chosen)};
}

// A backend that taps no routers has no program and no capture there (Geometry::check).
ops::RouterTapOps* tapping(const MlpTaps& taps, const LayerStep& step) {
  return taps.router_logits.empty() ? nullptr : step.ops.expert_ops()->router_taps();
}

void choose(const ops::RouteArgs& route, const MlpTaps& taps, const LayerStep& step) {
  if (ops::RouterTapOps* const ops = tapping(taps, step)) {
    ops->route_tapped(
        {.route = route, .logits = taps.router_logits, .chosen = taps.routed_experts});
  } else {
    step.ops.expert_ops()->route(route);
  }
}

// Of each token and expert that it has chosen, a row behind the activation.
ops::ExpertLinearArgs first_of(const Experts& mlp, const Experts::Weights& weights,
                               const Operand& in, const ops::View& chosen,
                               const Scratch<12>& scratch) {
  return {.x = in.x,
          .x_scale = in.scale,
          .chosen = chosen,
          .weight = &weights.gate_up,
          .first = mlp.first,
          .activation = mlp.activation,
          .out = shaped(scratch[3], in.rows() * mlp.chosen, weights.down.in)};
}

// What open_experts() is asked of the expert that every token has: nothing where its products read
// other rows than those of the chosen ones, or are adapted.
ops::OpenSharedArgs open_shared(const Experts& mlp, const Experts::Weights& weights,
                                const Operand& in, const LayerStep& step,
                                const Scratch<12>& scratch) {
  if (mlp.shared_width == 0 || weights.shared_gate_up.input != weights.gate_up.input) return {};
  for (const ops::LinearWeight* const weight :
       {&weights.shared_gate_up, &weights.shared_down, &weights.shared_gate}) {
    if (step.products.adapts(*weight)) return {};
  }
  return {.weight = &weights.shared_gate_up,
          .activation = mlp.shared_activation,
          .out = shaped(scratch[8], in.rows(), weights.shared_down.in),
          .next = &weights.shared_down};
}

// The second product of `activated`, and the sum of a token's rows in `sum`.
void close(const Experts& mlp, const Experts::Weights& weights, const ops::View& activated,
           const ops::View& chosen, ops::CombineExpertsArgs sum, const ops::CloseSharedArgs& shared,
           const LayerStep& step, const Scratch<12>& scratch) {
  ops::ExpertOps& ops = *step.ops.expert_ops();
  ops::ExpertLinearArgs second{
      .x = activated, .chosen = chosen, .weight = &weights.down, .first = mlp.first};
  if (ops.close_experts({.second = second, .sum = sum, .shared = shared})) return;
  RUDDER_CHECK(shared.weight == nullptr, "a shared expert that was opened is not closed");
  const Operand rows = operand_of(step.ops, weights.down, activated, scratch[4], scratch[5]);
  second.x = rows.x;
  second.x_scale = rows.scale;
  second.out = sum.x = shaped(scratch[6], activated.num_rows(), weights.down.out);
  ops.expert_linear(second);
  ops.combine_experts(sum);
}

// Experts.own_norms. What is normed behind products is whole on every rank first.
ops::View run_with_own_norms(const Experts& mlp, const Experts::Weights& weights, const Operand& in,
                             const MlpTaps& taps, const LayerStep& step, const Scratch<12>& scratch,
                             const ops::View& out) {
  const auto make_whole = [&](const ops::View& part) {
    if (step.num_ranks > 1) step.ops.rank_ops()->sum_ranks(part);
  };
  const ops::View shared = run_shared(mlp, weights, in, step, scratch).out;
  make_whole(shared);
  step.ops.residual_norm({.x = shared, .norm = weights.shared_post_norm, .out = shared});

  const ops::View read = shaped(scratch[11], in.rows(), mlp.hidden);
  step.ops.residual_norm({.x = step.residual, .norm = weights.router_norm, .out = read});
  const ops::RouteArgs route = route_of(mlp, weights, read, step, scratch);
  choose(route, taps, step);
  const Operand rows = step.products.empty_operand(weights.gate_up, in.rows(), scratch[11]);
  step.ops.residual_norm({.x = step.residual,
                          .norm = weights.pre_norm,
                          .out = rows.x,
                          .out_scale = rows.scale,
                          .next = &weights.gate_up});
  const ops::ExpertLinearArgs first = first_of(mlp, weights, rows, route.chosen, scratch);
  if (!step.ops.expert_ops()->open_experts({.first = first, .next = &weights.down})) {
    step.ops.expert_ops()->expert_linear(first);
  }
  close(mlp, weights, first.out, route.chosen, {.weights = route.weights, .out = out}, {}, step,
        scratch);
  make_whole(out);
  step.ops.residual_norm({.x = shared, .delta = out, .delta_norm = weights.post_norm, .out = out});
  return out;
}

}  // namespace

ops::View feed_forward(const Experts& mlp, const Experts::Weights& weights, const Operand& in,
                       const MlpTaps& taps, const LayerStep& step, const ops::View& out) {
  const Scratch scratch(step.scratch, step.max_tokens, scratch_widths(mlp));
  const ops::View sum = shaped(out, in.rows(), weights.down.out);
  if (mlp.own_norms) return run_with_own_norms(mlp, weights, in, taps, step, scratch, sum);
  const ops::RouteArgs route = route_of(mlp, weights, in.act, step, scratch);
  const ops::ExpertLinearArgs first = first_of(mlp, weights, in, route.chosen, scratch);
  ops::ExpertOps& ops = *step.ops.expert_ops();
  const bool is_tapped = tapping(taps, step) != nullptr;
  if (is_tapped) choose(route, taps, step);
  ops::OpenExpertsArgs open{.route = is_tapped ? ops::RouteArgs{} : route,
                            .first = first,
                            .next = &weights.down,
                            .shared = open_shared(mlp, weights, in, step, scratch)};
  bool is_open = ops.open_experts(open);
  if (!is_open && open.shared.weight != nullptr) {
    open.shared = {};
    is_open = ops.open_experts(open);
  }
  if (!is_open) {
    if (!is_tapped) choose(route, taps, step);
    ops.expert_linear(first);
  }
  ops::CombineExpertsArgs terms{.weights = route.weights, .out = sum};
  ops::CloseSharedArgs closing;
  if (is_open && open.shared.weight != nullptr) {
    closing = {.x = open.shared.out,
               .weight = &weights.shared_down,
               .gate_x = in.act,
               .gate = mlp.shared_gate ? &weights.shared_gate : nullptr};
  } else {
    const Shared shared = run_shared(mlp, weights, in, step, scratch);
    terms.shared = shared.out;
    terms.shared_gate = shared.gate;
  }
  close(mlp, weights, first.out, route.chosen, terms, closing, step, scratch);
  return sum;
}

}  // namespace rudder::model
