#include "rudder/model/decoder.h"

#include <algorithm>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/model/branch.h"
#include "rudder/model/check_weights.h"
#include "rudder/model/decoder_buffers.h"
#include "rudder/model/tensors.h"

namespace rudder::model {
namespace {

using tensor::DType;
using tensor::View;

// The weights that a branch's input is first multiplied with, and a mixer's output.
template <typename BranchWeights>
const ops::LinearWeight& input_of(const BranchWeights& weights) {
  return std::visit([](const auto& branch) -> const ops::LinearWeight& { return branch.input(); },
                    weights);
}
template <typename MixerWeights>
const ops::LinearWeight& output_of(const MixerWeights& weights) {
  return std::visit([](const auto& mixer) -> const ops::LinearWeight& { return mixer.output(); },
                    weights);
}

class LayerwiseDecoder final : public Decoder {
 public:
  LayerwiseDecoder(const ModelSpec& spec, const Weights& weights, std::span<const ops::KvLayer> kv,
                   ops::Ops& ops, int32_t max_tokens, DecoderBuffers buffers, HiddenPool kept,
                   const View& final_rows)
      : spec_(spec),
        weights_(weights),
        kv_(kv.begin(), kv.end()),
        ops_(ops),
        rank_(ops::rank_of(ops)),
        max_tokens_(max_tokens),
        buffers_(std::move(buffers)),
        kept_(std::move(kept)),
        final_rows_(final_rows),
        products_(ops, buffers_.scale) {}

  Begun begin(const ForwardBatch& batch) override;
  View finish(const Begun& begun, const ForwardBatch& batch) override;
  View forward(const ForwardBatch& batch) override { return finish(begin(batch), batch); }
  View hidden(int64_t num_tokens) const override {
    return shaped(buffers_.residual, num_tokens, spec_.hidden);
  }
  View more_logits(const View& rows) override { return head(sampled(last_, rows)); }

 private:
  LayerStep layer_step(size_t layer, const ForwardBatch& batch) const;
  ops::Taps taps_at(size_t layer, tap::Site site, const ForwardBatch& batch,
                    const ops::TapBatch& rows) const;
  Mixed mix_layer(size_t layer, const View& x, const Operand& in, const ForwardBatch& batch);
  Operand end_layer(size_t layer, const View& x, const Mixed& mixed, const ForwardBatch& batch,
                    const ops::TapBatch& rows);
  ops::ResidualNormArgs encode_parts(const ops::ResidualNormArgs& args, const ForwardBatch& batch);
  Operand add_and_norm(const ops::ResidualNormArgs& asked, const ops::LinearWeight& next,
                       const ForwardBatch& batch);
  void tap_mixed(Mixed& mixed, const ops::Taps& taps, const LayerStep& step);
  void end_patterns(const ForwardBatch& batch, size_t begin);
  void keep(size_t layer, const View& x, const ForwardBatch& batch);
  void keep_passed(const ForwardBatch& batch);
  void place_kept(const View& x, int64_t column, const ForwardBatch& batch);
  void keep_normed(const View& x, const ForwardBatch& batch);
  void keep_final(const View& x, const View& rows);
  void end_stage(const ops::ResidualNormArgs& asked, const ForwardBatch& batch);
  Operand sampled(const Operand& in, const View& rows);
  View head(const Operand& in);
  View gather(const View& in, const View& rows, const View& buffer);

  const ModelSpec spec_;
  const Weights& weights_;
  const std::vector<ops::KvLayer> kv_;
  ops::Ops& ops_;
  const ops::Rank rank_;
  const int32_t max_tokens_;
  const DecoderBuffers buffers_;  // shaped to the step at hand
  const HiddenPool kept_;
  const View final_rows_;  // empty: nobody reads them
  const Products products_;
  Operand last_;  // the head's, of the last forward; more_logits() reads it again
};

View LayerwiseDecoder::gather(const View& in, const View& rows, const View& buffer) {
  const View out = shaped(buffer, rows.num_rows(), in.shape[1]);
  ops_.gather_rows({.x = in, .rows = rows, .out = out});
  return out;
}

LayerStep LayerwiseDecoder::layer_step(size_t layer, const ForwardBatch& batch) const {
  return {.ops = ops_,
          .products = products_,
          .scratch = buffers_.scratch,
          .max_tokens = max_tokens_,
          .batch = batch,
          .layer = spec_.stage.first_layer + static_cast<int32_t>(layer),
          .kv = kv_[layer],
          .ropes = buffers_.ropes,
          .whole_rows = buffers_.whole_rows,
          .num_ranks = rank_.count};
}

// Where the step encodes at a point that the op passes, all of the op up to the last such point but
// the normed row's, cut behind each; what is left of the op. On a rank the first of them that has
// the branch adds up the ranks' parts.
ops::ResidualNormArgs LayerwiseDecoder::encode_parts(const ops::ResidualNormArgs& args,
                                                     const ForwardBatch& batch) {
  const auto encodes = [&](const ops::Taps& taps) { return encodes_at(batch, taps); };
  ops::ResidualNormArgs rest = args;
  rest.sums_ranks = !rank_.is_alone() && !args.delta.empty();
  if (encodes(rest.delta_taps)) {
    if (rest.sums_ranks) ops_.sum_ranks(rest.delta);
    rest.sums_ranks = false;
    if (!rest.delta_norm.empty()) {
      ops_.residual_norm({.x = rest.delta, .norm = rest.delta_norm, .out = rest.delta});
    }
    ops_.residual_norm(
        {.x = rest.delta, .x_taps = {rest.delta_taps}, .sum_scale = rest.delta_scale});
    ops_.encode({.x = rest.delta, .taps = rest.delta_taps});
    rest.delta_norm = {};
    rest.delta_taps = {};
    rest.delta_scale = 1.0f;
  }
  for (const bool last : {false, true}) {
    const ops::Taps taps = rest.x_taps[last ? 1 : 0];
    if (!encodes(taps)) continue;
    ops::ResidualNormArgs part = rest;
    part.norm = {};
    part.out = {};
    part.out_taps = {};
    if (!last) part.x_taps[1] = {};
    ops_.residual_norm(part);
    ops_.encode({.x = rest.x, .taps = taps});
    rest = {.x = rest.x,
            .norm = rest.norm,
            .out = rest.out,
            .out_scale = rest.out_scale,
            .x_taps = {{}, last ? ops::Taps{} : rest.x_taps[1]},
            .out_taps = rest.out_taps};
  }
  return rest;
}

// Runs the op, if it does anything, with an output in the form that `next` takes; what `next`
// takes: the normed row, or x itself where there is no norm.
Operand LayerwiseDecoder::add_and_norm(const ops::ResidualNormArgs& asked,
                                       const ops::LinearWeight& next, const ForwardBatch& batch) {
  const ops::ResidualNormArgs args = encode_parts(asked, batch);
  ops::ResidualNormArgs placed = args;
  Operand normed;
  // Rows are encoded in act; `next` may take others.
  const bool encodes = !args.norm.empty() && encodes_at(batch, args.out_taps);
  if (args.norm.empty()) {
    placed.out_taps = {};
  } else if (encodes) {
    const bool quantises = next.x_dtype == DType::kF8E4M3;  // from where the branch is by now read
    normed.x = shaped(quantises ? buffers_.delta : buffers_.normed, args.x.shape[0], spec_.hidden);
    placed.out = normed.x;
  } else {
    normed = products_.empty_operand(next, args.x.shape[0], buffers_.normed);
    placed.out = normed.x;
    placed.out_scale = normed.scale;
    placed.next = &next;
  }
  const bool is_tapped = !args.x_taps[0].empty() || !args.x_taps[1].empty();
  if (!args.delta.empty() || !args.norm.empty() || is_tapped) ops_.residual_norm(placed);
  if (encodes) {
    encode_at(ops_, batch, args.out_taps, normed.x);
    return products_.operand_of(next, normed.x, buffers_.normed);
  }
  return args.norm.empty() ? products_.operand_of(next, args.x, buffers_.normed) : normed;
}

// What a mixer made, of all rows: an op of its own, which is nothing but its taps.
void LayerwiseDecoder::tap_mixed(Mixed& mixed, const ops::Taps& taps, const LayerStep& step) {
  if (taps.empty()) return;
  if (!rank_.is_alone()) {
    mixed.out = tap_shares(step, mixed.out, mixed.free, taps);
    std::swap(mixed.buffer, mixed.free);
    return;
  }
  ops_.residual_norm({.x = mixed.out, .x_taps = {taps}});
  encode_at(ops_, step.batch, taps, mixed.out);
}

// Of the stage's layers from `begin` on, in steps whose capture sets name patterns.
void LayerwiseDecoder::end_patterns(const ForwardBatch& batch, size_t begin) {
  if (!captures_patterns(batch)) return;
  const int32_t first = spec_.stage.first_layer;
  ops_.end_patterns({.table = batch.tap_table,
                     .batch = &batch.taps,
                     .first_layer = first + static_cast<int32_t>(begin),
                     .end_layer = first + static_cast<int32_t>(spec_.layers.size())});
}

// What enters the layer, of all rows, where a draft head reads it, or where the next stage takes it
// from.
void LayerwiseDecoder::keep(size_t layer, const View& x, const ForwardBatch& batch) {
  const int32_t entered = spec_.stage.first_layer + static_cast<int32_t>(layer);
  for (size_t i = 0; i < kept_.layers.size(); ++i) {
    if (kept_.layers[i] != entered) continue;
    if (spec_.stage.is_last()) {
      place_kept(x, static_cast<int64_t>(i) * spec_.hidden, batch);
    } else {
      ops_.copy(kept_.passed_of(i, x.shape[0]), x);
    }
  }
}

// What entered layers of the stages in front, where a draft head reads it.
void LayerwiseDecoder::keep_passed(const ForwardBatch& batch) {
  if (!spec_.stage.is_last()) return;
  for (size_t i = 0; i < kept_.layers.size(); ++i) {
    if (kept_.layers[i] >= spec_.stage.first_layer) continue;
    place_kept(kept_.passed_of(i, batch.ids.num_rows()), static_cast<int64_t>(i) * spec_.hidden,
               batch);
  }
}

// Rows of all tokens, where their KV is.
void LayerwiseDecoder::place_kept(const View& x, int64_t column, const ForwardBatch& batch) {
  ops_.place_rows({.x = x,
                   .rows = batch.kv_slot.rows(kept_.group * x.shape[0], x.shape[0]),
                   .out = kept_.rows,
                   .column = column,
                   .block_size = kept_.block_size,
                   .group_layers = kept_.group_layers});
}

// What the final norm makes of what the last layer leaves, of all rows, where a draft head reads
// it. By now the branch is free.
void LayerwiseDecoder::keep_normed(const View& x, const ForwardBatch& batch) {
  if (!kept_.final_norm) return;
  const View normed = shaped(buffers_.delta, x.shape[0], spec_.hidden);
  ops_.residual_norm({.x = x, .norm = weights_.final_norm, .out = normed});
  place_kept(normed, 0, batch);
}

// The normed rows of logits, where Medusa heads read them. `x` is what the last layer leaves, of
// these rows or of all.
void LayerwiseDecoder::keep_final(const View& x, const View& rows) {
  if (final_rows_.empty()) return;
  const bool has_all = x.shape[0] > rows.num_rows();
  ops_.residual_norm({.x = has_all ? gather(x, rows, buffers_.rows_residual) : x,
                      .norm = weights_.final_norm,
                      .out = final_rows_.rows(0, rows.num_rows())});
}

// Adds the last branch; the norm behind it is the next stage's.
void LayerwiseDecoder::end_stage(const ops::ResidualNormArgs& asked, const ForwardBatch& batch) {
  const ops::ResidualNormArgs args = encode_parts(asked, batch);
  if (!args.delta.empty() || !args.x_taps[0].empty()) ops_.residual_norm(args);
}

// The rows of the head's operand whose logits are wanted, of all rows. By now the branch and the
// sampled rows' residual are free.
Operand LayerwiseDecoder::sampled(const Operand& in, const View& rows) {
  Operand out{.x = shaped(buffers_.delta, rows.num_rows(), in.x.shape[1]), .scale = {}};
  out.x.dtype = in.x.dtype;
  ops_.gather_rows({.x = in.x, .rows = rows, .out = out.x});
  if (in.scale.empty()) return out;
  const auto column = [](View view, int64_t length) {
    view.dtype = DType::kF32;
    view.shape = {length, 1};
    return view;
  };
  out.scale = column(buffers_.rows_residual, rows.num_rows());
  ops_.gather_rows({.x = column(in.scale, in.rows()), .rows = rows, .out = out.scale});
  out.scale.shape = {rows.num_rows()};
  return out;
}

// [R, vocab].
View LayerwiseDecoder::head(const Operand& in) {
  const View logits = shaped(buffers_.logits, in.rows(), spec_.vocab);
  const View part =
      rank_.is_alone() ? logits : shaped(buffers_.logits_part, in.rows(), weights_.head.out);
  ops_.logits({.x = in.x,
               .x_scale = in.scale,
               .head = &weights_.head,
               .softcap = spec_.final_softcap,
               .out = part,
               .scale = spec_.logit_scale});
  if (!rank_.is_alone()) ops_.gather_logits({.part = part, .out = logits});
  return logits;
}

// The taps of a point; `rows` are those of the rows that pass there.
ops::Taps LayerwiseDecoder::taps_at(size_t layer, tap::Site site, const ForwardBatch& batch,
                                    const ops::TapBatch& rows) const {
  const tap::Point point{spec_.stage.first_layer + static_cast<int32_t>(layer), site};
  const bool is_tapped = batch.tapped == nullptr || batch.tapped->has(point);
  if (batch.tap_table == nullptr || !is_tapped) return {};
  return {batch.tap_table, &rows, point.index()};
}

// From what enters the layer, normed, to what its mixer makes of it.
Mixed LayerwiseDecoder::mix_layer(size_t layer, const View& x, const Operand& in,
                                  const ForwardBatch& batch) {
  keep(layer, x, batch);
  const LayerStep step = layer_step(layer, batch);
  Mixed mixed = visit_branch(spec_.layers[layer].mixer, weights_.layers[layer].mixer,
                             [&](const auto& mixer, const auto& mixer_weights) {
                               return mix(mixer, mixer_weights, in, step);
                             });
  if (layer + 1 == spec_.layers.size()) end_patterns(batch, 0);
  if (ops_.taps_mixers())
    tap_mixed(mixed, taps_at(layer, tap::Site::kAttnZ, batch, batch.taps), step);
  return mixed;
}

// The rest of the layer, with the norm behind it: what the next layer takes, or the head. `rows`
// are the taps of the rows of x.
Operand LayerwiseDecoder::end_layer(size_t layer, const View& x, const Mixed& mixed,
                                    const ForwardBatch& batch, const ops::TapBatch& rows) {
  using tap::Site;
  const auto taps = [&](size_t of, Site site) { return taps_at(of, site, batch, rows); };
  const LayerWeights& weights = weights_.layers[layer];
  const ops::LinearWeight& output = output_of(weights.mixer);
  const View mixer_out = products_.project(
      output, products_.operand_of(output, mixed.out, mixed.free), buffers_.delta);
  const Operand in = add_and_norm({.x = x,
                                   .delta = mixer_out,
                                   .delta_norm = weights.mixer_post_norm,
                                   .norm = weights.mlp_pre_norm,
                                   .delta_taps = taps(layer, Site::kAttnOut),
                                   .x_taps = {taps(layer, Site::kResidMid)},
                                   .out_taps = taps(layer, Site::kMlpIn),
                                   .delta_scale = spec_.branch_scale},
                                  input_of(weights.mlp), batch);
  // Ranks without shared memory have parts of these rows, which nobody may ask for; but a graph
  // is captured as if all that is common were.
  const bool has_whole_rows = rank_.is_alone() || ops_.ranks_share_memory();
  const ops::Taps mlp_taps = has_whole_rows ? taps(layer, Site::kMlpAct) : ops::Taps{};
  const View mlp_out = visit_branch(spec_.layers[layer].mlp, weights.mlp,
                                    [&](const auto& mlp, const auto& mlp_weights) {
                                      return feed_forward(mlp, mlp_weights, in, mlp_taps,
                                                          layer_step(layer, batch), buffers_.delta);
                                    });
  ops::ResidualNormArgs last{.x = x,
                             .delta = mlp_out,
                             .delta_norm = weights.mlp_post_norm,
                             .delta_taps = taps(layer, Site::kMlpOut),
                             .x_taps = {taps(layer, Site::kResidPost)},
                             .delta_scale = spec_.branch_scale,
                             .sum_scale = weights.scale};
  if (layer + 1 < spec_.layers.size()) {
    last.norm = weights_.layers[layer + 1].mixer_pre_norm;
    last.x_taps[1] = taps(layer + 1, Site::kResidPre);
    last.out_taps = taps(layer + 1, Site::kAttnIn);
    return add_and_norm(last, input_of(weights_.layers[layer + 1].mixer), batch);
  }
  if (!spec_.stage.is_last()) {
    end_stage(last, batch);
    return {};
  }
  last.norm = weights_.final_norm;
  last.out_taps = taps(layer, Site::kFinalNorm);
  return add_and_norm(last, weights_.head, batch);
}

LayerwiseDecoder::Begun LayerwiseDecoder::begin(const ForwardBatch& batch) {
  using tap::Site;
  const View x = hidden(batch.ids.num_rows());
  ops_.begin_attention(batch.attention);
  keep_passed(batch);
  // The first rank has taken the records of the stage before when another adds to them.
  if (!spec_.stage.is_first() && !rank_.is_alone()) end_patterns(batch, spec_.layers.size());
  if (spec_.stage.is_first()) {
    ops_.embed({.table = weights_.embedding,
                .tied = spec_.tied_head ? &weights_.head : nullptr,
                .ids = batch.ids,
                .scale = spec_.embed_scale,
                .out = x});
  }
  Operand in = add_and_norm({.x = x,
                             .norm = weights_.layers[0].mixer_pre_norm,
                             .x_taps = {taps_at(0, Site::kResidPre, batch, batch.taps)},
                             .out_taps = taps_at(0, Site::kAttnIn, batch, batch.taps)},
                            input_of(weights_.layers[0].mixer), batch);
  const size_t last = spec_.layers.size() - 1;
  for (size_t layer = 0; layer < last; ++layer) {
    in = end_layer(layer, x, mix_layer(layer, x, in, batch), batch, batch.taps);
  }
  const Mixed mixed = mix_layer(last, x, in, batch);
  return {.residual = x, .mixed = mixed.out, .buffer = mixed.buffer, .free = mixed.free};
}

View LayerwiseDecoder::finish(const Begun& begun, const ForwardBatch& batch) {
  const View& rows = batch.logits_rows;
  View x = begun.residual;
  Mixed mixed{.out = begun.mixed, .buffer = begun.buffer, .free = begun.free};
  const ops::TapBatch* tapped = &batch.taps;
  const bool keeps_all_rows = batch.keep_all_rows || kept_.final_norm || !spec_.stage.is_last();
  if (rows.num_rows() < x.shape[0] && !keeps_all_rows) {
    // The last KV is written: from here on only the rows whose logits are wanted matter.
    if (rows.num_rows() == 0) return {};
    mixed.out = gather(mixed.out, rows, mixed.free);
    std::swap(mixed.buffer, mixed.free);
    x = gather(x, rows, buffers_.rows_residual);
    tapped = &batch.rows_taps;
  }
  const Operand in = end_layer(spec_.layers.size() - 1, x, mixed, batch, *tapped);
  if (!spec_.stage.is_last()) return {};
  last_ = in;
  keep_normed(x, batch);
  if (rows.num_rows() == 0) return {};
  keep_final(x, rows);
  return head(in.rows() > rows.num_rows() ? sampled(in, rows) : in);
}

// Tells the backend what steps of this model look like.
Result<void> prepare_backend(const ModelSpec& spec, const Weights& weights,
                             std::span<const ops::KvLayer> kv, ops::Ops& ops,
                             const DecoderLimits& limits) {
  ops::StepBounds bounds{.max_tokens = limits.max_tokens,
                         .max_rows = limits.max_logits_rows,
                         .max_seqs = limits.max_logits_rows,  // one row of each may be wanted
                         .hidden = spec.hidden,
                         .max_linear_in = spec.hidden,
                         .head = spec.stage.is_last() ? &weights.head : nullptr,
                         .attention = {}};
  bounds.cuts_ops = limits.encodes || (limits.taps_shares && !ops::rank_of(ops).is_alone());
  std::vector<ops::AttentionShape> shapes;
  std::vector<ops::LinearWeight> linears;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if (const Attention* const attention = attention_of(spec.layers[i])) {
      const Softmax* const softmax = softmax_of(spec.layers[i]);
      shapes.push_back({.num_heads = attention->num_heads,
                        .window = attention->window,
                        .kv = kv[i],
                        .has_sinks = softmax != nullptr && softmax->sinks,
                        .has_gate = softmax == nullptr});
    }
    LayerWeights layer = weights.layers[i];
    for (const LinearModule& linear : layer_tensors(spec, {}, i, &layer).linears) {
      bounds.max_linear_in = std::max(bounds.max_linear_in, linear.in.count());
      linears.push_back(*linear.target);
    }
  }
  bounds.linears = linears;
  bounds.attention = shapes;
  return ops.prepare(bounds);
}

}  // namespace

Result<std::unique_ptr<Decoder>> Decoder::make(const ModelSpec& spec, const Weights& weights,
                                               std::span<const ops::KvLayer> kv, ops::Ops& ops,
                                               const DecoderLimits& limits, const HiddenPool& kept,
                                               const ops::View& final_rows) {
  check_weights(spec, weights, ops::rank_of(ops));
  RUDDER_CHECK(kv.size() == spec.layers.size());
  RUDDER_TRY(DecoderBuffers buffers, DecoderBuffers::allocate(spec, limits, ops));
  auto decoder = std::make_unique<LayerwiseDecoder>(spec, weights, kv, ops, limits.max_tokens,
                                                    std::move(buffers), kept, final_rows);
  RUDDER_TRY_VOID(prepare_backend(spec, weights, kv, ops, limits));
  return decoder;
}

int64_t Decoder::workspace_bytes(const ModelSpec& spec, const DecoderLimits& limits,
                                 tensor::DType act, ops::Rank rank) {
  return DecoderBuffers::bytes(spec, limits, act, rank);
}

}  // namespace rudder::model
