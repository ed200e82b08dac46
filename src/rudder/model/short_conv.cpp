#include "rudder/model/short_conv.h"

#include "rudder/model/branch.h"
#include "rudder/model/tensors.h"

namespace rudder::model {

void list_tensors(const ShortConv& mixer, int64_t hidden, const ShortConv::Names& names,
                  ShortConv::Weights* weights, LayerTensors& out) {
  using Weights = ShortConv::Weights;
  const Extent width{mixer.width, ops::equal_share(mixer.width, out.rank)};
  out.add_linear({names.in}, {width, width, width}, hidden, mixer.bias,
                 target_in(weights, &Weights::in));
  out.add_filters({names.filter}, {width}, mixer.length, target_in(weights, &Weights::filter));
  if (mixer.bias) out.add_vector(names.filter_bias, width, target_in(weights, &Weights::bias));
  out.add_linear({names.out}, {hidden}, width, mixer.bias, target_in(weights, &Weights::out));
}

StateBytes state_bytes(const ShortConv& mixer) {
  const auto row = int64_t{mixer.width} * static_cast<int64_t>(sizeof(float));
  return {.state = ops::kStateLine + (mixer.length - 1) * row, .row = row};
}

std::array<int64_t, 3> scratch_widths(const ShortConv& mixer) {
  return {int64_t{3} * mixer.width, mixer.width, mixer.width};
}

Mixed mix(const ShortConv& mixer, const ShortConv::Weights& weights, const Operand& in,
          const LayerStep& step) {
  const Scratch scratch(step.scratch, step.max_tokens, scratch_widths(mixer));
  const ForwardBatch& batch = step.batch;
  const ops::View inputs = step.products.project(weights.in, in, scratch[0]);
  const ops::View gated = shaped(scratch[1], in.rows(), mixer.width);
  const ops::View convolved = shaped(scratch[2], in.rows(), mixer.width);
  ops::StateOps& ops = *step.ops.state_ops();
  ops.gate_rows({.x = inputs,
                 .gate = inputs,
                 .gate_begin = int64_t{2} * mixer.width,
                 .function = ops::GateFunction::kItself,
                 .out = gated});
  ops.convolve({.state = {.q_begin = batch.attention.q_begin,
                          .table_row = batch.attention.table_row,
                          .positions = batch.positions,
                          .batch = batch.states,
                          .layer = step.state},
                .x = gated,
                .weight = weights.filter,
                .bias = weights.bias,
                .length = mixer.length,
                .out = convolved});
  ops.gate_rows({.x = convolved,
                 .gate = inputs,
                 .gate_begin = mixer.width,
                 .function = ops::GateFunction::kItself,
                 .out = gated});
  return {.out = gated, .buffer = scratch[1], .free = scratch[2]};
}

}  // namespace rudder::model
