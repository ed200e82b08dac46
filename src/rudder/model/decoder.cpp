#include "rudder/model/decoder.h"

#include <algorithm>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/model/branch.h"
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

  View forward(const ForwardBatch& batch) override;
  View hidden(int64_t num_tokens) const override {
    return shaped(buffers_.residual, num_tokens, spec_.hidden);
  }
  View more_logits(const View& rows) override { return head(sampled(last_, rows)); }

 private:
  LayerStep layer_step(size_t layer, const ForwardBatch& batch) const;
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
  if (batch.tap_table == nullptr || (batch.passages & tap::kMixerWeights) == 0) return;
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

View LayerwiseDecoder::forward(const ForwardBatch& batch) {
  using tap::Site;
  const View& rows = batch.logits_rows;
  View x = hidden(batch.ids.num_rows());
  const ops::TapBatch* tapped = &batch.taps;  // of the rows of x
  const auto taps = [&](size_t layer, Site site) -> ops::Taps {
    if (batch.tap_table == nullptr || (batch.passages & tap::passage(site)) == 0) return {};
    return {batch.tap_table, tapped,
            tap::Point{spec_.stage.first_layer + static_cast<int32_t>(layer), site}.index()};
  };
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
                             .x_taps = {taps(0, Site::kResidPre)},
                             .out_taps = taps(0, Site::kAttnIn)},
                            input_of(weights_.layers[0].mixer), batch);
  for (size_t i = 0; i < spec_.layers.size(); ++i) {
    const bool is_stages_last = i + 1 == spec_.layers.size();
    const bool is_last = is_stages_last && spec_.stage.is_last();
    const LayerWeights& weights = weights_.layers[i];

    keep(i, x, batch);
    const LayerStep step = layer_step(i, batch);
    Mixed mixed = visit_branch(spec_.layers[i].mixer, weights.mixer,
                               [&](const auto& mixer, const auto& mixer_weights) {
                                 return mix(mixer, mixer_weights, in, step);
                               });
    if (is_stages_last) end_patterns(batch, 0);
    if (ops_.taps_mixers()) tap_mixed(mixed, taps(i, Site::kAttnZ), step);
    const bool keeps_all_rows = batch.keep_all_rows || kept_.final_norm;
    if (is_last && rows.num_rows() < batch.ids.num_rows() && !keeps_all_rows) {
      // The last KV is written: from here on only the rows whose logits are wanted matter.
      if (rows.num_rows() == 0) return {};
      mixed.out = gather(mixed.out, rows, mixed.free);
      std::swap(mixed.buffer, mixed.free);
      x = gather(x, rows, buffers_.rows_residual);
      tapped = &batch.rows_taps;
    }
    const ops::LinearWeight& output = output_of(weights.mixer);
    const View mixer_out = products_.project(
        output, products_.operand_of(output, mixed.out, mixed.free), buffers_.delta);
    in = add_and_norm({.x = x,
                       .delta = mixer_out,
                       .delta_norm = weights.mixer_post_norm,
                       .norm = weights.mlp_pre_norm,
                       .delta_taps = taps(i, Site::kAttnOut),
                       .x_taps = {taps(i, Site::kResidMid)},
                       .out_taps = taps(i, Site::kMlpIn),
                       .delta_scale = spec_.branch_scale},
                      input_of(weights.mlp), batch);
    // Ranks without shared memory have parts of these rows, which nobody may ask for; but a graph
    // is captured as if all that is common were.
    const bool has_whole_rows = rank_.is_alone() || ops_.ranks_share_memory();
    const ops::Taps mlp_taps = has_whole_rows ? taps(i, Site::kMlpAct) : ops::Taps{};
    const View mlp_out = visit_branch(
        spec_.layers[i].mlp, weights.mlp, [&](const auto& mlp, const auto& mlp_weights) {
          return feed_forward(mlp, mlp_weights, in, mlp_taps, step, buffers_.delta);
        });
    ops::ResidualNormArgs last{.x = x,
                               .delta = mlp_out,
                               .delta_norm = weights.mlp_post_norm,
                               .delta_taps = taps(i, Site::kMlpOut),
                               .x_taps = {taps(i, Site::kResidPost)},
                               .delta_scale = spec_.branch_scale,
                               .sum_scale = weights.scale};
    if (is_last) {
      last.norm = weights_.final_norm;
      last.out_taps = taps(i, Site::kFinalNorm);
      in = add_and_norm(last, weights_.head, batch);
    } else if (is_stages_last) {
      end_stage(last, batch);
      return {};
    } else {
      last.norm = weights_.layers[i + 1].mixer_pre_norm;
      last.x_taps[1] = taps(i + 1, Site::kResidPre);
      last.out_taps = taps(i + 1, Site::kAttnIn);
      in = add_and_norm(last, input_of(weights_.layers[i + 1].mixer), batch);
    }
  }
  last_ = in;
  keep_normed(x, batch);
  if (rows.num_rows() == 0) return {};
  keep_final(x, rows);
  return head(in.rows() > rows.num_rows() ? sampled(in, rows) : in);
}

// The loader loads what the spec says; this catches weights of another spec.
void check_weights(const ModelSpec& spec, const Weights& weights, ops::Rank rank) {
  RUDDER_CHECK(!spec.layers.empty() && weights.layers.size() == spec.layers.size(),
               "{} layers of weights for {} layers", weights.layers.size(), spec.layers.size());
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    LayerWeights layer = weights.layers[i];
    const LayerTensors tensors = layer_tensors(spec, {}, i, &layer);
    for (const NormTensor& norm : tensors.norms) {
      const int64_t width = norm.width.count();
      const int64_t alphas = norm.alpha.count > 0 ? width : 0;
      RUDDER_CHECK(
          norm.target->weight.num_rows() == width && norm.target->alpha.num_rows() == alphas,
          "'{}'", norm.weight.name);
    }
    for (const VectorTensor& vector : tensors.vectors) {
      RUDDER_CHECK(vector.target->num_rows() == vector.count.count(), "'{}'", vector.name);
    }
    for (const LinearModule& linear : tensors.linears) {
      RUDDER_CHECK(linear.target->in == linear.in.count() && linear.target->out == linear.rows(),
                   "'{}'", linear.parts.front().name);
    }
    const Attention* const attention = attention_of(spec.layers[i]);
    RUDDER_CHECK(
        attention == nullptr || attention->rope == kNoRope ||
            (attention->rope >= 0 && attention->rope < static_cast<int32_t>(spec.ropes.size())),
        "layer {}", i);
  }
  const Stage& stage = spec.stage;
  RUDDER_CHECK(!stage.is_last() || (weights.head.in == spec.hidden &&
                                    weights.head.out == ops::vocab_share(spec.vocab, rank).count));
  RUDDER_CHECK(!stage.is_last() || !weights.final_norm.empty());
  RUDDER_CHECK(!stage.is_first() || spec.tied_head == weights.embedding.empty());
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
  bounds.scales_branches = spec.branch_scale != 1.0f;
  bounds.scales_logits = spec.logit_scale != 1.0f;
  bounds.cuts_ops = limits.encodes || (limits.taps_shares && !ops::rank_of(ops).is_alone());
  std::vector<ops::AttentionShape> shapes;
  std::vector<ops::LinearWeight> linears;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if (const Attention* const attention = attention_of(spec.layers[i])) {
      const Softmax* const softmax = softmax_of(spec.layers[i]);
      shapes.push_back({.num_heads = attention->num_heads,
                        .window = attention->window,
                        .kv = kv[i],
                        .has_v_norm = attention->v_norm,
                        .has_sinks = softmax != nullptr && softmax->sinks});
    }
    bounds.scales_layers = bounds.scales_layers || spec.layers[i].has_scale;
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
