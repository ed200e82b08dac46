#include "rudder/model/experts.h"

#include <fmt/format.h>

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

}  // namespace

void list_tensors(const Experts& mlp, int64_t hidden, const Experts::Names& names,
                  Experts::Weights* weights, LayerTensors& out) {
  using Weights = Experts::Weights;
  out.add_linear({names.router}, {mlp.count}, hidden, false, target_in(weights, &Weights::router));
  if (mlp.router.correction) {
    out.add_vector(names.correction, mlp.count, target_in(weights, &Weights::correction));
  }
  const Extent width{mlp.width, ops::equal_share(mlp.width, out.rank)};
  std::vector<std::string> gate_up;
  std::vector<std::string> down;
  for (int32_t e = 0; e < mlp.count; ++e) {
    gate_up.push_back(fmt::format("{}.{}.{}", names.experts, e, names.gate));
    gate_up.push_back(fmt::format("{}.{}.{}", names.experts, e, names.up));
    down.push_back(fmt::format("{}.{}.{}", names.experts, e, names.down));
  }
  out.add_experts({gate_up.begin(), gate_up.end()}, width, hidden, mlp.count,
                  target_in(weights, &Weights::gate_up));
  out.add_experts({down.begin(), down.end()}, hidden, width, mlp.count,
                  target_in(weights, &Weights::down));
  if (mlp.shared_width == 0) return;
  const Extent shared{mlp.shared_width, ops::equal_share(mlp.shared_width, out.rank)};
  out.add_linear(names.shared_gate_up, {shared, shared}, hidden, false,
                 target_in(weights, &Weights::shared_gate_up));
  out.add_linear({names.shared_down}, {hidden}, shared, false,
                 target_in(weights, &Weights::shared_down));
  if (!mlp.shared_gate) return;
  out.add_linear({names.shared_gate}, {1}, hidden, false,
                 target_in(weights, &Weights::shared_gate));
}

std::array<int64_t, 10> scratch_widths(const Experts& mlp) {
  const int64_t k = mlp.chosen;
  const int64_t shared = mlp.shared_width;
  return {mlp.count,
          four_byte_width(k),
          four_byte_width(k),
          2 * k * mlp.width,
          k * mlp.width,
          k * mlp.hidden,
          2 * shared,
          shared,
          shared == 0 ? 0 : mlp.hidden,
          mlp.shared_gate ? 1 : 0};
}

namespace {

// Of the expert that every token has; empty without one.
struct Shared {
  ops::View out;
  ops::View gate;
};

// Behind the last product that takes `in` as it is: it may quantise it anew.
Shared run_shared(const Experts& mlp, const Experts::Weights& weights, const Operand& in,
                  const LayerStep& step, const Scratch<10>& scratch) {
  if (mlp.shared_width == 0) return {};
  const Products& products = step.products;
  Shared out;
  const ops::View gate_up =
      products.project(weights.shared_gate_up,
                       products.as_taken(weights.shared_gate_up, in, scratch[8]), scratch[6]);
  if (mlp.shared_gate) {
    out.gate = products.project(weights.shared_gate,
                                products.as_taken(weights.shared_gate, in, scratch[8]), scratch[9]);
  }
  const ops::View activated = shaped(scratch[7], in.rows(), weights.shared_down.in);
  step.ops.gated_act(
      {.x = gate_up, .activation = mlp.activation, .out = activated, .out_scale = {}, .taps = {}});
  out.out =
      products.project(weights.shared_down,
                       products.operand_of(weights.shared_down, activated, scratch[6]), scratch[8]);
  return out;
}

}  // namespace

ops::View feed_forward(const Experts& mlp, const Experts::Weights& weights, const Operand& in,
                       const ops::Taps& /*taps*/, const LayerStep& step, const ops::View& out) {
  const Scratch scratch(step.scratch, step.max_tokens, scratch_widths(mlp));
  const int64_t tokens = in.rows();
  const int64_t pairs = tokens * mlp.chosen;
  ops::ExpertOps& ops = *step.ops.expert_ops();

  const ops::View logits =
      step.products.project(weights.router, {.x = in.act, .scale = {}, .act = in.act}, scratch[0]);
  const ops::View chosen = numbers_in(scratch[1], tensor::DType::kI32, tokens, mlp.chosen);
  const ops::View shares = numbers_in(scratch[2], tensor::DType::kF32, tokens, mlp.chosen);
  ops.route({.logits = logits,
             .correction = weights.correction,
             .kind = mlp.router.kind,
             .renormalises = mlp.router.renormalises,
             .scale = mlp.router.scale,
             .groups = mlp.router.groups,
             .kept_groups = mlp.router.kept_groups,
             .chosen = chosen,
             .weights = shares});

  const ops::View gate_up = shaped(scratch[3], pairs, weights.gate_up.out);
  ops.expert_linear({.x = in.x,
                     .x_scale = in.scale,
                     .chosen = chosen,
                     .weight = &weights.gate_up,
                     .out = gate_up});
  const ops::View activated = shaped(scratch[4], pairs, weights.down.in);
  step.ops.gated_act(
      {.x = gate_up, .activation = mlp.activation, .out = activated, .out_scale = {}, .taps = {}});
  const ops::View made = shaped(scratch[5], pairs, weights.down.out);
  ops.expert_linear({.x = activated, .chosen = chosen, .weight = &weights.down, .out = made});
  const ops::View sum = shaped(out, tokens, weights.down.out);
  const Shared shared = run_shared(mlp, weights, in, step, scratch);
  ops.combine_experts(
      {.x = made, .weights = shares, .shared = shared.out, .shared_gate = shared.gate, .out = sum});
  return sum;
}

}  // namespace rudder::model
