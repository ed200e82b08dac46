#include "rudder/model/head_decoder.h"

#include <algorithm>
#include <array>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/model/branch.h"
#include "rudder/model/column_share.h"
#include "rudder/model/decoder_buffers.h"

namespace rudder::model {
namespace {

using tensor::DType;
using tensor::View;

// Elements of the buffers that a head has beside those of its layer.
struct HeadSizes {
  int64_t aux = 0;     // rows of the model
  int64_t joined = 0;  // the attention's input
  int64_t feedback = 0;
  int64_t logits = 0;  // of the head's own tokens, f32
  int64_t share = 0;   // of a rank: its columns of fc's inputs

  HeadSizes(const DraftHeadSpec& spec, const DecoderLimits& limits, int32_t num_feedback,
            ops::Rank rank)
      : aux((spec.norm_before_fc ? 2 : 1) * limits.max_tokens * spec.aux_width()),
        joined(int64_t{2} * limits.max_tokens * spec.layer.hidden),
        feedback(int64_t{num_feedback} * spec.layer.hidden),
        logits(spec.is_product() ? 0 : int64_t{limits.max_logits_rows} * spec.draft_vocab),
        share(rank.is_alone() ? 0
                              : limits.max_tokens * input_extent(spec.fc_width(), rank).count()) {}
};

struct HeadBuffers {
  DecoderBuffers layer;
  View aux;       // [2 or 1, max_tokens * aux_width] act
  View joined;    // [max_tokens * 2 * hidden] act
  View feedback;  // [num_feedback, hidden] act
  View logits;    // [max_logits_rows * draft_vocab] f32
  View share;     // [max_tokens * fc_width / ranks] act; empty for one that is alone
};

class HeadDecoder final : public Decoder {
 public:
  HeadDecoder(const DraftHeadSpec& spec, const DraftHeadWeights& weights, const HeadSource& source,
              const ops::KvLayer& kv, ops::Ops& ops, const DecoderLimits& limits,
              HeadBuffers buffers, ColumnShare columns)
      : spec_(spec),
        weights_(weights),
        source_(source),
        kv_(kv),
        ops_(ops),
        rank_(ops::rank_of(ops)),
        max_tokens_(limits.max_tokens),
        buffers_(std::move(buffers)),
        columns_(columns),
        products_(ops, buffers_.layer.scale) {}

  View forward(const ForwardBatch& batch) override;
  Begun begin(const ForwardBatch&) override { RUDDER_CHECK(false, "a head is one layer"); }
  View finish(const Begun&, const ForwardBatch&) override {
    RUDDER_CHECK(false, "a head is one layer");
  }
  View hidden(int64_t) const override { RUDDER_CHECK(false, "a head has no stages"); }
  View more_logits(const View&) override { RUDDER_CHECK(false, "a head scores nothing"); }

 private:
  View begin_with(const ForwardBatch& batch);
  View multiply_fc(const View& in, const View& buffer);
  View embed(const ForwardBatch& batch);
  View normed(const View& x, const ops::NormSpec& norm, const View& buffer);
  View join(const ForwardBatch& batch, const View& g);
  View multiply(const ForwardBatch& batch, const View& g);
  View head(const View& h, const ForwardBatch& batch);
  void logits(const ops::LinearWeight& output, const Operand& in, const View& out);

  const DraftHeadSpec spec_;
  const DraftHeadWeights& weights_;
  const HeadSource source_;
  const ops::KvLayer kv_;
  ops::Ops& ops_;
  const ops::Rank rank_;
  const int32_t max_tokens_;
  const HeadBuffers buffers_;
  const ColumnShare columns_;  // of fc
  const Products products_;
};

View HeadDecoder::normed(const View& x, const ops::NormSpec& norm, const View& buffer) {
  const View out = shaped(buffer, x.shape[0], x.shape[1]);
  ops_.residual_norm({.x = x, .norm = norm, .out = out});
  return out;
}

// [T, hidden] of `in` [T, fc_width], where the branches are added; `buffer` is for what the product
// takes.
View HeadDecoder::multiply_fc(const View& in, const View& buffer) {
  const View share = columns_.of(in, buffers_.share);
  const View out = products_.project(weights_.fc, products_.operand_of(weights_.fc, share, buffer),
                                     buffers_.layer.residual);
  columns_.sum(out);
  return out;
}

// g of every token, [T, hidden].
View HeadDecoder::begin_with(const ForwardBatch& batch) {
  const int64_t tokens = batch.ids.num_rows();
  const View g = shaped(buffers_.layer.residual, tokens, spec_.layer.hidden);
  if (!batch.goes_on_rows.empty()) {
    ops_.gather_rows({.x = buffers_.feedback, .rows = batch.goes_on_rows, .out = g});
    return g;
  }
  // The model's row of a token lies where the head's KV of it does.
  const int64_t half = max_tokens_ * spec_.aux_width();
  View aux = shaped(buffers_.aux, tokens, spec_.aux_width());
  ops_.gather_rows({.x = source_.rows, .rows = batch.kv_slot.rows(0, tokens), .out = aux});
  if (spec_.is_product()) return aux;
  if (spec_.norm_before_fc) {
    aux = normed(aux, weights_.fc_norm, buffers_.aux.rows(half, half));
  }
  return multiply_fc(aux, buffers_.joined);
}

View HeadDecoder::embed(const ForwardBatch& batch) {
  const View embedded = shaped(buffers_.layer.delta, batch.ids.num_rows(), spec_.layer.hidden);
  const View& table = spec_.has_embedding ? weights_.embedding : source_.embedding;
  ops_.embed({.table = table,
              .tied = table.empty() ? source_.head : nullptr,
              .ids = batch.ids,
              .out = embedded});
  return embedded;
}

// The attention's input and what the branches are added to, [T, hidden], of kProduct.
View HeadDecoder::multiply(const ForwardBatch& batch, const View& g) {
  const View joined = shaped(buffers_.joined, g.shape[0], spec_.fc_width());
  ops_.draft_ops()->place_rows({.x = embed(batch), .out = joined});
  ops_.draft_ops()->place_rows({.x = g, .out = joined, .column = spec_.layer.hidden});
  return multiply_fc(joined, buffers_.aux);
}

// The attention's input, [T, 2 * hidden]. Afterwards `g` is what the branches are added to.
View HeadDecoder::join(const ForwardBatch& batch, const View& g) {
  const int64_t hidden = spec_.layer.hidden;
  const View joined = shaped(buffers_.joined, g.shape[0], 2 * hidden);
  const View embedded = embed(batch);
  const View& buffer = buffers_.layer.normed;
  ops_.draft_ops()->place_rows({.x = normed(embedded, weights_.input_norm, buffer), .out = joined});
  const View normed_g = normed(g, weights_.hidden_norm, buffer);
  ops_.draft_ops()->place_rows({.x = normed_g, .out = joined, .column = hidden});
  if (spec_.norm_before_residual) ops_.draft_ops()->place_rows({.x = normed_g, .out = g});
  return joined;
}

// [R, draft_vocab]; on a rank the ranks' parts of it, side by side.
void HeadDecoder::logits(const ops::LinearWeight& output, const Operand& in, const View& out) {
  const View part =
      rank_.is_alone() ? out : shaped(buffers_.layer.logits_part, in.rows(), output.out);
  ops_.logits({.x = in.x, .x_scale = in.scale, .head = &output, .out = part});
  if (!rank_.is_alone()) ops_.rank_ops()->gather_logits({.part = part, .out = out});
}

// [R, vocab] of h [R, hidden].
View HeadDecoder::head(const View& h, const ForwardBatch& batch) {
  const View last = spec_.is_product() ? h : normed(h, weights_.final_norm, buffers_.layer.normed);
  const ops::LinearWeight& output = spec_.is_product() ? *source_.head : weights_.head;
  if (!batch.feedback_rows.empty()) {
    ops_.draft_ops()->place_rows(
        {.x = spec_.norm_output ? last : h, .rows = batch.feedback_rows, .out = buffers_.feedback});
  }
  const Operand in = products_.operand_of(output, last, buffers_.layer.delta);
  const View all = shaped(buffers_.layer.logits, h.shape[0], spec_.layer.vocab);
  const bool is_spread = !weights_.target_ids.empty();
  const View own = is_spread ? shaped(buffers_.logits, h.shape[0], spec_.draft_vocab) : all;
  logits(output, in, own);
  if (is_spread)
    ops_.draft_ops()->spread_logits({.x = own, .ids = weights_.target_ids, .out = all});
  return all;
}

View HeadDecoder::forward(const ForwardBatch& batch) {
  const View& rows = batch.logits_rows;
  ops_.begin_attention(batch.attention);
  View x = begin_with(batch);
  const LayerStep step{.ops = ops_,
                       .products = products_,
                       .scratch = buffers_.layer.scratch,
                       .max_tokens = max_tokens_,
                       .batch = batch,
                       .kv = kv_,
                       .ropes = buffers_.layer.ropes};
  const Attention& attention = *attention_of(spec_.layer.layers[0]);
  if (spec_.is_product()) x = multiply(batch, x);
  const View joined = spec_.is_product() ? x : join(batch, x);
  Mixed mixed = mix(attention, weights_.attention,
                    products_.operand_of(weights_.attention.qkv, joined, buffers_.aux), step);
  if (rows.num_rows() < batch.ids.num_rows()) {
    if (rows.num_rows() == 0) return {};
    const View out = shaped(mixed.free, rows.num_rows(), mixed.out.shape[1]);
    ops_.gather_rows({.x = mixed.out, .rows = rows, .out = out});
    mixed = {.out = out, .buffer = mixed.free, .free = mixed.buffer};
    const View picked = shaped(buffers_.layer.rows_residual, rows.num_rows(), x.shape[1]);
    ops_.gather_rows({.x = x, .rows = rows, .out = picked});
    x = picked;
  }
  const ops::LinearWeight& output = weights_.attention.out;
  const View mixer_out = products_.project(
      output, products_.operand_of(output, mixed.out, mixed.free), buffers_.layer.delta);
  const Operand in =
      products_.empty_operand(weights_.mlp.input(), x.shape[0], buffers_.layer.normed);
  const bool sums_ranks = !rank_.is_alone();
  ops_.residual_norm({.x = x,
                      .delta = mixer_out,
                      .norm = weights_.mlp_norm,
                      .out = in.x,
                      .out_scale = in.scale,
                      .sums_ranks = sums_ranks});
  const View mlp_out = feed_forward(*gated_mlp_of(spec_.layer.layers[0]), weights_.mlp, in, {},
                                    step, buffers_.layer.delta);
  ops_.residual_norm({.x = x, .delta = mlp_out, .sums_ranks = sums_ranks});
  return head(x, batch);
}

// Without the model's own products: its decoder has prepared them, for larger steps.
Result<void> prepare_head(const DraftHeadSpec& spec, const DraftHeadWeights& weights,
                          const ops::KvLayer& kv, ops::Ops& ops, const DecoderLimits& limits) {
  const std::array linears = {weights.fc, weights.attention.qkv, weights.attention.out,
                              weights.mlp.gate_up, weights.mlp.down};
  const std::array shapes = {
      ops::AttentionShape{.num_heads = attention_of(spec.layer.layers[0])->num_heads, .kv = kv}};
  ops::StepBounds bounds{.max_tokens = limits.max_tokens,
                         .max_rows = limits.max_logits_rows,
                         .max_seqs = limits.max_logits_rows,
                         .hidden = spec.layer.hidden,
                         .max_linear_in = 0,
                         .head = spec.is_product() ? nullptr : &weights.head,
                         .linears = linears,
                         .attention = shapes};
  for (const ops::LinearWeight& linear : linears) {
    bounds.max_linear_in = std::max(bounds.max_linear_in, linear.in);
  }
  return ops.prepare(bounds);
}

}  // namespace

Result<std::unique_ptr<Decoder>> make_head_decoder(const DraftHeadSpec& spec,
                                                   const DraftHeadWeights& weights,
                                                   const HeadSource& source, const ops::KvLayer& kv,
                                                   ops::Ops& ops, const DecoderLimits& limits,
                                                   int32_t num_feedback) {
  const ops::Rank rank = ops::rank_of(ops);
  const int64_t own_tokens = ops::vocab_share(spec.draft_vocab, rank).count;
  RUDDER_CHECK(spec.layer.layers.size() == 1 &&
               weights.fc.in == input_extent(spec.fc_width(), rank).count() &&
               weights.attention.qkv.in == spec.attention_width() &&
               source.rows.shape[1] == spec.aux_width());
  RUDDER_CHECK(spec.is_product() ? source.head != nullptr && source.head->in == spec.layer.hidden &&
                                       source.head->out == own_tokens
                                 : weights.head.out == own_tokens);
  const HeadSizes sizes(spec, limits, num_feedback, rank);
  const DType act = ops.act_dtype();
  HeadBuffers buffers;
  RUDDER_TRY(buffers.layer, DecoderBuffers::allocate(spec.layer, limits, ops));
  RUDDER_TRY(buffers.aux, ops.allocate(act, {sizes.aux}));
  RUDDER_TRY(buffers.joined, ops.allocate(act, {sizes.joined}));
  RUDDER_TRY(buffers.feedback, ops.allocate(act, {num_feedback, spec.layer.hidden}));
  if (sizes.logits > 0) {
    RUDDER_TRY(buffers.logits, ops.allocate(DType::kF32, {sizes.logits}));
  }
  if (sizes.share > 0) {
    RUDDER_TRY(buffers.share, ops.allocate(act, {sizes.share}));
  }
  RUDDER_TRY(ColumnShare columns, ColumnShare::make(ops, limits.max_tokens));
  auto decoder = std::make_unique<HeadDecoder>(spec, weights, source, kv, ops, limits,
                                               std::move(buffers), columns);
  RUDDER_TRY_VOID(prepare_head(spec, weights, kv, ops, limits));
  return decoder;
}

int64_t head_workspace_bytes(const DraftHeadSpec& spec, const DecoderLimits& limits,
                             int32_t num_feedback, DType act, ops::Rank rank) {
  const HeadSizes sizes(spec, limits, num_feedback, rank);
  return DecoderBuffers::bytes(spec.layer, limits, act, rank) +
         ColumnShare::device_bytes(limits.max_tokens, rank) +
         (sizes.aux + sizes.joined + sizes.feedback + sizes.share) *
             static_cast<int64_t>(tensor::dtype_bytes(act)) +
         sizes.logits * static_cast<int64_t>(sizeof(float));
}

}  // namespace rudder::model
