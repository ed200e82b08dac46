#include "rudder/model/experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

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

// Of a checkpoint with a tensor for each expert.
void list_apart(const Experts& mlp, int64_t hidden, const Experts::Names& names,
                ops::LinearWeight* gate_up, ops::LinearWeight* down, LayerTensors& out) {
  const Extent width{mlp.width, ops::equal_share(mlp.width, out.rank)};
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
  const Extent width{mlp.width, ops::equal_share(mlp.width, out.rank)};
  ops::LinearWeight* const gate_up = target_in(weights, &Weights::gate_up);
  ops::LinearWeight* const down = target_in(weights, &Weights::down);
  if (names.stacked_gate_up.empty()) {
    list_apart(mlp, hidden, names, gate_up, down, out);
  } else {
    const std::string of_gate_up = fmt::format("{}.{}", names.experts, names.stacked_gate_up);
    const std::string of_down = fmt::format("{}.{}", names.experts, names.down);
    out.add_stacked_experts(of_gate_up, 2, width, hidden, mlp.count, mlp.bias, gate_up);
    out.add_stacked_experts(of_down, 1, hidden, width, mlp.count, mlp.bias, down);
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

std::array<int64_t, 11> scratch_widths(const Experts& mlp) {
  const int64_t k = mlp.chosen;
  const int64_t shared = mlp.shared_width;
  return {mlp.count,     four_byte_width(k),           four_byte_width(k),     k * mlp.width,
          k * mlp.width, four_byte_width(k),           k * mlp.hidden,         2 * shared,
          shared,        shared == 0 ? 0 : mlp.hidden, mlp.shared_gate ? 1 : 0};
}

namespace {

// Of the expert that every token has; empty without one.
struct Shared {
  ops::View out;
  ops::View gate;
};

// Behind the last product that takes `in` as it is: it may quantise it anew.
Shared run_shared(const Experts& mlp, const Experts::Weights& weights, const Operand& in,
                  const LayerStep& step, const Scratch<11>& scratch) {
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
  const ops::View activated = shaped(scratch[8], in.rows(), weights.shared_down.in);
  step.ops.gated_act(
      {.x = gate_up, .activation = mlp.activation, .out = activated, .out_scale = {}, .taps = {}});
  out.out =
      products.project(weights.shared_down,
                       products.operand_of(weights.shared_down, activated, scratch[7]), scratch[9]);
  return out;
}

}  // namespace

ops::View feed_forward(const Experts& mlp, const Experts::Weights& weights, const Operand& in,
                       const MlpTaps& taps, const LayerStep& step, const ops::View& out) {
  const Scratch scratch(step.scratch, step.max_tokens, scratch_widths(mlp));
  const int64_t tokens = in.rows();
  const int64_t pairs = tokens * mlp.chosen;
  ops::ExpertOps& ops = *step.ops.expert_ops();

  const Operand act{.x = in.act, .scale = {}, .act = in.act};
  const bool is_adapted = step.products.adapts(weights.router);
  const ops::View logits = is_adapted ? step.products.project(weights.router, act, scratch[0])
                                      : shaped(scratch[0], tokens, weights.router.out);
  const ops::View chosen = numbers_in(scratch[1], tensor::DType::kI32, tokens, mlp.chosen);
  const ops::View shares = numbers_in(scratch[2], tensor::DType::kF32, tokens, mlp.chosen);
  const ops::RouteArgs route{.x = in.act,
                             .router = is_adapted ? nullptr : &weights.router,
                             .logits = logits,
                             .correction = weights.correction,
                             .kind = mlp.router.kind,
                             .renormalises = mlp.router.renormalises,
                             .scale = mlp.router.scale,
                             .groups = mlp.router.groups,
                             .kept_groups = mlp.router.kept_groups,
                             .chosen = chosen,
                             .weights = shares};
  // A backend that taps no routers has no program and no capture there (Geometry::check).
  ops::RouterTapOps* const tapping = taps.router_logits.empty() ? nullptr : ops.router_taps();
  if (tapping == nullptr) {
    ops.route(route);
  } else {
    tapping->route_tapped(
        {.route = route, .logits = taps.router_logits, .chosen = taps.routed_experts});
  }

  const ops::View activated = shaped(scratch[3], pairs, weights.down.in);
  ops.expert_linear({.x = in.x,
                     .x_scale = in.scale,
                     .chosen = chosen,
                     .weight = &weights.gate_up,
                     .activation = mlp.activation,
                     .out = activated});
  const Operand rows = operand_of(step.ops, weights.down, activated, scratch[4], scratch[5]);
  const ops::View made = shaped(scratch[6], pairs, weights.down.out);
  ops.expert_linear(
      {.x = rows.x, .x_scale = rows.scale, .chosen = chosen, .weight = &weights.down, .out = made});
  const ops::View sum = shaped(out, tokens, weights.down.out);
  const Shared shared = run_shared(mlp, weights, in, step, scratch);
  ops.combine_experts(
      {.x = made, .weights = shares, .shared = shared.out, .shared_gate = shared.gate, .out = sum});
  return sum;
}

}  // namespace rudder::model
