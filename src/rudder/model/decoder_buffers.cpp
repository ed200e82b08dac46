#include "rudder/model/decoder_buffers.h"

#include <algorithm>
#include <variant>

#include "rudder/model/branch.h"
#include "rudder/model/rope.h"

namespace rudder::model {
namespace {

using tensor::DType;
using tensor::View;

struct Sizes {  // in elements
  int64_t hidden = 0;
  int64_t residual = 0;
  int64_t act = 0;  // where a branch reads it
  int64_t collapsed = 0;
  int64_t streams = 0;  // of a kind that has several; one is not 0 there
  int64_t delayed = 0;  // numbers of the first read and of the one before
  int64_t scratch = 0;  // of the branch that needs most
  int64_t rows = 0;
  int64_t logits = 0;
  int64_t logits_part = 0;
  int64_t sums = 0;  // that the backend of a rank keeps: of ResidualNormArgs.sums_ranks
  int64_t whole_rows = 0;
  int64_t scales = 0;
  int64_t layer_rows = 0;
  int64_t layer_index = 0;
  int64_t rope = 0;  // all tables, that of query_growth too
};

// A row of which each rank has a share.
int64_t widest_whole_row(const ModelSpec& spec, ops::Rank rank) {
  int64_t widest = 0;
  for (const LayerSpec& layer : spec.layers) {
    if (const Attention* const attention = attention_of(layer))
      widest = std::max(widest, attention->q_width());
    if (const LatentAttention* const latent = latent_of(layer))
      widest = std::max(widest, latent->value_width());
    if (const auto* const delta = std::get_if<GatedDelta>(&layer.mixer))
      widest = std::max(widest, delta->value_width());
    if (const auto* const conv = std::get_if<ShortConv>(&layer.mixer))
      widest = std::max<int64_t>(widest, conv->width);
    if (const StateSpace* const space = space_of(layer)) widest = std::max(widest, space->width());
    if (const GatedMlp* const mlp = gated_mlp_of(layer))
      widest = std::max<int64_t>(widest, mlp->width);
  }
  return widest * rank.count;
}

Sizes sizes_of(const ModelSpec& spec, const DecoderLimits& limits, ops::Rank rank) {
  Sizes sizes;
  const auto add_scratch = [&](const auto& branch) {
    int64_t elements = 0;
    for (const int64_t width : scratch_widths(branch)) {
      elements += piece_elements(limits.max_tokens, width);
    }
    sizes.scratch = std::max(sizes.scratch, elements);
  };
  add_scratch(spec.layer_embedding);
  sizes.layer_rows = limits.max_tokens * spec.layer_embedding.row_width();
  sizes.layer_index = int64_t{limits.max_tokens} * spec.layer_embedding.layers;
  for (const LayerSpec& layer : spec.layers) {
    const auto add = [&](const auto& branch) {
      add_scratch(branch);
      if (reads_act(branch)) sizes.act = int64_t{limits.max_tokens} * spec.hidden;
    };
    std::visit(add, layer.mixer);
    std::visit(add, layer.mlp);
  }
  sizes.hidden = int64_t{limits.max_tokens} * spec.hidden;
  if (limits.adapts) sizes.act = sizes.hidden;
  sizes.residual = limits.max_tokens * residual_width(spec);
  sizes.rows = limits.max_logits_rows * residual_width(spec);
  if (const int64_t streams = std::ssize(stream_numbers(spec.residual).begin); streams > 0) {
    sizes.collapsed = sizes.hidden;
    sizes.streams = streams;
    if (is_delayed(spec.residual)) sizes.delayed = (1 + int64_t{limits.max_tokens}) * streams;
  }
  sizes.logits = int64_t{limits.max_logits_rows} * spec.vocab;
  if (!rank.is_alone()) {
    // The first rank has most, also of the fewer tokens of a draft head.
    sizes.logits_part =
        int64_t{limits.max_logits_rows} * ops::vocab_share(spec.vocab, {0, rank.count}).count;
    sizes.sums = sizes.hidden;
    if (limits.taps_shares) sizes.whole_rows = kWholeRows * widest_whole_row(spec, rank);
  }
  sizes.scales = limits.max_tokens;
  for (const RopeSpec& rope : spec.ropes) {
    sizes.rope += int64_t{limits.max_seq_len} * rope.rotary_dim;
  }
  if (spec.query_growth.grows()) sizes.rope += limits.max_seq_len;
  return sizes;
}

Result<View> upload_layer_index(const LayerEmbedding& embedding, const DecoderLimits& limits,
                                ops::Ops& ops) {
  std::vector<int32_t> rows;
  for (int32_t layer = 0; layer < embedding.layers; ++layer) {
    for (int32_t t = 0; t < limits.max_tokens; ++t) rows.push_back(t * embedding.layers + layer);
  }
  const View host{rows.data(), DType::kI32, {static_cast<int64_t>(rows.size())}};
  return ops.upload(host, DType::kI32);
}

}  // namespace

Result<DecoderBuffers> DecoderBuffers::allocate(const ModelSpec& spec, const DecoderLimits& limits,
                                                ops::Ops& ops) {
  const Sizes sizes = sizes_of(spec, limits, ops::rank_of(ops));
  const DType act = ops.act_dtype();
  DecoderBuffers buffers;
  RUDDER_TRY(buffers.residual, ops.allocate(act, {sizes.residual}));
  RUDDER_TRY(buffers.rows_residual, ops.allocate(act, {sizes.rows}));
  if (sizes.streams > 0) {
    StreamNumbers numbers = stream_numbers(spec.residual);
    const auto upload = [&](std::vector<float>& values) {
      return ops.upload({values.data(), DType::kF32, {sizes.streams}}, DType::kF32);
    };
    RUDDER_TRY(buffers.collapsed, ops.allocate(act, {sizes.collapsed}));
    RUDDER_TRY(buffers.stream_begin, upload(numbers.begin));
    RUDDER_TRY(buffers.stream_as_one, upload(numbers.as_one));
    if (sizes.delayed > 0) {
      RUDDER_TRY(const View first, upload(numbers.first));
      buffers.stream_first = shaped(first, 1, sizes.streams);
      RUDDER_TRY(buffers.stream_pre, ops.allocate(DType::kF32, {sizes.delayed - sizes.streams}));
    }
  }
  RUDDER_TRY(buffers.normed, ops.allocate(act, {sizes.hidden}));
  RUDDER_TRY(buffers.delta, ops.allocate(act, {sizes.hidden}));
  if (sizes.act > 0) {
    RUDDER_TRY(buffers.act, ops.allocate(act, {sizes.act}));
  }
  RUDDER_TRY(buffers.scale, ops.allocate(DType::kF32, {sizes.scales}));
  RUDDER_TRY(buffers.logits, ops.allocate(DType::kF32, {sizes.logits}));
  if (sizes.logits_part > 0) {
    RUDDER_TRY(buffers.logits_part, ops.allocate(DType::kF32, {sizes.logits_part}));
  }
  if (sizes.whole_rows > 0) {
    RUDDER_TRY(buffers.whole_rows, ops.allocate(act, {sizes.whole_rows}));
  }
  RUDDER_TRY(buffers.scratch, ops.allocate(act, {sizes.scratch}));
  for (const RopeSpec& rope : spec.ropes) {
    std::vector<float> table = rope_table(rope, limits.max_seq_len);
    const View host{table.data(), DType::kF32, {limits.max_seq_len, 2, rope.rotary_dim / 2}};
    RUDDER_TRY(const View device, ops.upload(host, DType::kF32));
    buffers.ropes.push_back(device);
  }
  if (spec.layer_embedding.exists()) {
    RUDDER_TRY(buffers.layer_rows, ops.allocate(act, {sizes.layer_rows}));
    RUDDER_TRY(buffers.layer_products, ops.allocate(act, {sizes.layer_rows}));
    RUDDER_TRY(buffers.layer_index, upload_layer_index(spec.layer_embedding, limits, ops));
  }
  if (spec.query_growth.grows()) {
    std::vector<float> table = model::query_scales(spec.query_growth, limits.max_seq_len);
    const View host{table.data(), DType::kF32, {limits.max_seq_len}};
    RUDDER_TRY(buffers.query_scales, ops.upload(host, DType::kF32));
  }
  return buffers;
}

int64_t DecoderBuffers::bytes(const ModelSpec& spec, const DecoderLimits& limits, DType act,
                              ops::Rank rank) {
  const Sizes sizes = sizes_of(spec, limits, rank);
  const int64_t act_elements = sizes.residual + sizes.collapsed + sizes.act + 2 * sizes.hidden +
                               sizes.rows + sizes.scratch + sizes.whole_rows + 2 * sizes.layer_rows;
  return act_elements * static_cast<int64_t>(tensor::dtype_bytes(act)) +
         (sizes.logits + sizes.logits_part + sizes.sums + sizes.scales + sizes.rope +
          2 * sizes.streams + sizes.delayed + sizes.layer_index) *
             static_cast<int64_t>(tensor::dtype_bytes(DType::kF32));
}

}  // namespace rudder::model
