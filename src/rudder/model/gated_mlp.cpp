#include "rudder/model/gated_mlp.h"

#include "rudder/model/branch.h"
#include "rudder/model/tensors.h"

namespace rudder::model {

void list_tensors(const GatedMlp& mlp, int64_t hidden, const GatedMlp::Names& names,
                  GatedMlp::Weights* weights, LayerTensors& out) {
  using Weights = GatedMlp::Weights;
  const Extent width{mlp.width, ops::equal_share(mlp.width, out.rank)};
  out.add_linear(names.gate_up, {width, width}, hidden, mlp.bias,
                 target_in(weights, &Weights::gate_up));
  if (mlp.gate_factor != 1) out.linears.back().parts.front().factor = mlp.gate_factor;
  out.add_linear({names.down}, {hidden}, width, mlp.bias, target_in(weights, &Weights::down));
  out.linears.back().parts.front().factor = mlp.out_factor;
}

std::array<int64_t, 2> scratch_widths(const GatedMlp& mlp) {
  return {int64_t{2} * mlp.width, mlp.width};
}

ops::View feed_forward(const GatedMlp& mlp, const GatedMlp::Weights& weights, const Operand& in,
                       const MlpTaps& all_taps, const LayerStep& step, const ops::View& out) {
  const ops::Taps& taps = all_taps.act;
  const Scratch scratch(step.scratch, step.max_tokens, scratch_widths(mlp));
  const ops::View gate_up = step.products.project(weights.gate_up, in, scratch[0]);
  if (!taps.empty() && step.num_ranks > 1) {
    const ops::View share = shaped(scratch[1], in.rows(), weights.down.in);
    step.ops.gated_act(
        {.x = gate_up, .activation = mlp.activation, .out = share, .out_scale = {}, .taps = {}});
    const ops::View tapped = tap_shares(step, share, scratch[0], taps);
    return step.products.project(weights.down,
                                 step.products.operand_of(weights.down, tapped, scratch[1]), out);
  }
  const bool adapts = step.products.adapts(weights.down);
  const bool quantises = weights.down.input == ops::InputForm::kF8Rows;
  // Of rows in act, wherever the product takes them. With taps the op is not run twice: it counts.
  if (encodes_at(step.batch, taps) || (adapts && quantises && !taps.empty())) {
    const ops::View activated = shaped(scratch[1], in.rows(), weights.down.in);
    step.ops.gated_act({.x = gate_up,
                        .activation = mlp.activation,
                        .out = activated,
                        .out_scale = {},
                        .taps = taps});
    encode_at(step.ops, step.batch, taps, activated);
    return step.products.project(
        weights.down, step.products.operand_of(weights.down, activated, scratch[0]), out);
  }
  Operand activated = step.products.empty_operand(weights.down, in.rows(), scratch[1]);
  step.ops.gated_act({.x = gate_up,
                      .activation = mlp.activation,
                      .out = activated.x,
                      .out_scale = activated.scale,
                      .taps = taps,
                      .next = &weights.down});
  if (adapts && quantises) {  // the rows in act, beside those that have the bits of a plain step
    activated.act = shaped(step.batch.adapter_act, in.rows(), weights.down.in);
    step.ops.gated_act(
        {.x = gate_up, .activation = mlp.activation, .out = activated.act, .out_scale = {}});
  }
  return step.products.project(weights.down, activated, out);
}

}  // namespace rudder::model
