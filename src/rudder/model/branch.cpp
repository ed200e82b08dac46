#include "rudder/model/branch.h"

#include "rudder/base/check.h"
#include "rudder/model/decoder_buffers.h"

namespace rudder::model {
ops::View shaped(const ops::View& buffer, int64_t rows, int64_t width) {
  ops::View view = buffer.rows(0, rows * width);
  view.shape = {rows, width};
  return view;
}

ops::View Products::project(const ops::LinearWeight& weight, const Operand& in,
                            const ops::View& buffer) const {
  const ops::View out = shaped(buffer, in.rows(), weight.out);
  const bool adapted = adapts(weight);
  const ops::AdaptArgs args{.x = in.act,
                            .tokens = adapters_,
                            .weights = weight.adapters.get(),
                            .mid = adapter_mid_,
                            .out = out};
  if (adapted) {
    RUDDER_CHECK(!in.act.empty(), "a product with adapters has no rows in act");
    ops_.adapter_ops()->shrink_adapters(args);
  }
  ops_.linear({.x = in.x, .x_scale = in.scale, .weight = &weight, .out = out});
  if (adapted) ops_.adapter_ops()->expand_adapters(args);
  return out;
}

Operand Products::empty_operand(const ops::LinearWeight& weight, int64_t rows,
                                const ops::View& buffer) const {
  Operand operand{.x = shaped(buffer, rows, weight.in), .scale = {}};
  if (weight.input == ops::InputForm::kF8Rows) {
    operand.x.dtype = tensor::DType::kF8E4M3;
    operand.scale = scales_.rows(0, rows);
  } else {
    operand.act = operand.x;
  }
  return operand;
}

Operand Products::operand_of(const ops::LinearWeight& weight, const ops::View& x,
                             const ops::View& buffer) const {
  if (weight.input == ops::InputForm::kAct) return {.x = x, .scale = {}, .act = x};
  Operand operand = empty_operand(weight, x.shape[0], buffer);
  ops_.quantise({.x = x, .out = operand.x, .out_scale = operand.scale, .next = &weight});
  operand.act = x;
  return operand;
}

Operand Products::as_taken(const ops::LinearWeight& weight, const Operand& in,
                           const ops::View& buffer) const {
  if (weight.input == ops::InputForm::kAct) return {.x = in.act, .scale = {}, .act = in.act};
  return in.scale.empty() ? operand_of(weight, in.act, buffer) : in;
}

LayerStep LayerStep::with_scratch(const ops::View& other) const {
  return {.ops = ops,
          .products = products,
          .scratch = other,
          .max_tokens = max_tokens,
          .batch = batch,
          .layer = layer,
          .kv = kv,
          .ropes = ropes,
          .query_scales = query_scales,
          .whole_rows = whole_rows,
          .num_ranks = num_ranks,
          .state = state};
}

void capture_patterns(const ops::AttentionArgs& args, const LayerStep& step) {
  const ForwardBatch& batch = step.batch;
  if (!captures_patterns(batch) || !batch.tapped->has_patterns(step.layer)) return;
  step.ops.pattern_ops()->patterns(
      {.attention = args, .table = batch.tap_table, .batch = &batch.taps, .layer = step.layer});
}

ops::View tap_shares(const LayerStep& step, const ops::View& x, const ops::View& buffer,
                     const ops::Taps& taps) {
  const ops::View out = shaped(buffer, x.shape[0], x.shape[1]);
  const int64_t width = x.shape[1] * step.num_ranks;
  step.ops.rank_ops()->tap_shares({.x = x,
                                   .out = out,
                                   .rows = shaped(step.whole_rows, kWholeRows, width),
                                   .taps = taps,
                                   .encodes = encodes_at(step.batch, taps)});
  return out;
}

}  // namespace rudder::model
