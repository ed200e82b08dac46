#include "rudder/model/decoder.h"

#include <algorithm>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/model/branch.h"
#include "rudder/model/check_facets.h"
#include "rudder/model/check_weights.h"
#include "rudder/model/decoder_buffers.h"
#include "rudder/model/kept_hidden.h"
#include "rudder/model/residual_pass.h"
#include "rudder/model/tensors.h"
#include "rudder/model/weight_budget.h"

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
// Of a mixer or an MLP.
template <typename Branch>
bool reads_input_in_act(const Branch& branch) {
  return std::visit([](const auto& kind) { return reads_act(kind); }, branch);
}

// The decoder of a whole model, or of a stage of a pipeline. Decoder::make builds it; the executor
// owns it and calls it on its worker thread, step after step. The decoder owns its buffers and the
// pass of the residual; weights, KV cache and ops belong to the executor.
//
// A pass over T tokens: the embedding begins the residual x; each layer reads x for its mixer
// (attention), writes the output back, and does the same with its MLP; the final norm reads x for
// the output head, whose products are the logits. `begin` runs all of it up to the last layer's
// mixer, behind which only the rows count whose logits are wanted; `finish` runs the rest.
class LayerwiseDecoder final : public Decoder {
 public:
  static Result<std::unique_ptr<Decoder>> make(const ModelSpec& spec, const Weights& weights,
                                               std::span<const ops::KvLayer> kv, ops::Ops& ops,
                                               int32_t max_tokens, DecoderBuffers buffers,
                                               const HiddenPool& kept, const View& final_rows,
                                               std::span<const LayerState> states) {
    std::unique_ptr<LayerwiseDecoder> decoder(new LayerwiseDecoder(
        spec, weights, kv, ops, max_tokens, std::move(buffers), kept, final_rows, states));
    RUDDER_TRY(decoder->residual_, ResidualPass::make(decoder->spec_, weights, ops,
                                                      decoder->products_, decoder->buffers_));
    return decoder;
  }

  Begun begin(const ForwardBatch& batch) override;
  View finish(const Begun& begun, const ForwardBatch& batch) override;
  View forward(const ForwardBatch& batch) override { return finish(begin(batch), batch); }
  View hidden(int64_t num_tokens) const override {
    return shaped(buffers_.residual, num_tokens, residual_width(spec_));
  }
  View more_logits(const View& rows) override { return head(sampled(last_, rows)); }

 private:
  LayerwiseDecoder(const ModelSpec& spec, const Weights& weights, std::span<const ops::KvLayer> kv,
                   ops::Ops& ops, int32_t max_tokens, DecoderBuffers buffers, HiddenPool kept,
                   const View& final_rows, std::span<const LayerState> states)
      : spec_(spec),
        weights_(weights),
        kv_(kv.begin(), kv.end()),
        states_(states.begin(), states.end()),
        ops_(ops),
        rank_(ops::rank_of(ops)),
        max_tokens_(max_tokens),
        buffers_(std::move(buffers)),
        kept_(spec_, weights.final_norm, ops, buffers_, std::move(kept), final_rows),
        products_(ops, buffers_.scale),
        layer_rows_(spec_.layer_embedding, weights.layer_embedding, ops, products_, buffers_,
                    max_tokens) {
    share_kv();
  }

  void share_kv();
  LayerStep layer_step(size_t layer, const ForwardBatch& batch) const;
  void add_layer_row(size_t layer, const View& x, const ops::Taps& taps, const ForwardBatch& batch);
  ops::Taps taps_at(size_t layer, tap::Site site, const ForwardBatch& batch,
                    const ops::TapBatch& rows) const;
  Mixed mix_layer(size_t layer, const View& x, const Operand& in, const ForwardBatch& batch);
  Operand enter_layer(size_t layer, const View& x, const ForwardBatch& batch,
                      const ops::TapBatch& rows);
  Operand end_layer(size_t layer, const View& x, const Mixed& mixed, const ForwardBatch& batch,
                    const ops::TapBatch& rows);
  void write_mixed(size_t layer, const View& x, const Mixed& mixed, const ForwardBatch& batch,
                   const ops::TapBatch& rows);
  void run_mlp(size_t layer, const View& x, const ForwardBatch& batch, const ops::TapBatch& rows);
  void tap_mixed(Mixed& mixed, const ops::Taps& taps, const LayerStep& step);
  void end_patterns(const ForwardBatch& batch, size_t begin);
  template <typename Branch>
  bool wants_act(const Branch& branch, const ops::LinearWeight& input) const {
    return reads_input_in_act(branch) || products_.adapts(input);
  }
  Operand sampled(const Operand& in, const View& rows);
  View head(const Operand& in);
  View gather(const View& in, const View& rows, const View& buffer);

  const ModelSpec spec_;
  const Weights& weights_;
  std::vector<ops::KvLayer> kv_;
  const std::vector<LayerState> states_;  // none where no layer keeps one
  ops::Ops& ops_;
  const ops::Rank rank_;
  const int32_t max_tokens_;
  const DecoderBuffers buffers_;  // shaped to the step at hand
  KeptHidden kept_;
  Products products_;
  LayerRows layer_rows_;
  std::unique_ptr<ResidualPass> residual_;
  Operand last_;  // what the head took in the last forward; more_logits() reads it again
};

View LayerwiseDecoder::gather(const View& in, const View& rows, const View& buffer) {
  const View out = shaped(buffer, rows.num_rows(), in.shape[1]);
  ops_.gather_rows({.x = in, .rows = rows, .out = out});
  return out;
}

// What a layer reads of another's KV it reads with the scales of that layer.
void LayerwiseDecoder::share_kv() {
  for (size_t i = 0; i < spec_.layers.size(); ++i) {
    const Attention* const attention = attention_of(spec_.layers[i]);
    if (attention == nullptr || attention->kv_layer < 0) continue;
    if (kv_[i].format() != ops::KvFormat{DType::kF8E4M3}) continue;
    const auto source = static_cast<size_t>(attention->kv_layer);
    const auto& weights = attention_of(weights_.layers[source]);
    kv_[i].k_scale = weights.k_scale;
    kv_[i].v_scale = weights.v_scale;
  }
}

// What the layer makes of its own row of the tokens, behind its MLP; `taps` are of what is then in
// the residual. Every rank has all of it.
void LayerwiseDecoder::add_layer_row(size_t layer, const View& x, const ops::Taps& taps,
                                     const ForwardBatch& batch) {
  const BranchSite site{layer, BranchKind::kMlp};
  const LayerEmbedding::Weights& weights = weights_.layers[layer].layer_embedding;
  const ops::NormSpec none;
  const Operand in = residual_->read(x, site, {.norm = none, .next = weights.gate}, batch);
  residual_->write(x, site,
                   {.delta = layer_rows_.read(layer, weights, in, buffers_.delta),
                    .delta_norm = weights.post_norm,
                    .x_taps = taps,
                    .sum_scale = weights_.layers[layer].scale,
                    .is_whole = true},
                   batch);
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
          .query_scales = buffers_.query_scales,
          .whole_rows = buffers_.whole_rows,
          .num_ranks = rank_.count,
          .state = states_.empty() ? LayerState{} : states_[layer]};
}

// Runs the taps of attn_z on what the layer's mixer made, of all tokens. No macro-op is there that
// could run them beside its own work. On a rank, which has some of the heads, the ranks put whole
// rows together first.
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

// Completes the attention patterns that this step captures (tap::CapturePattern) of the stage's
// layers from `begin` on; a step that captures none launches nothing.
void LayerwiseDecoder::end_patterns(const ForwardBatch& batch, size_t begin) {
  if (!captures_patterns(batch)) return;
  const int32_t first = spec_.stage.first_layer;
  ops_.pattern_ops()->end_patterns(
      {.table = batch.tap_table,
       .batch = &batch.taps,
       .first_layer = first + static_cast<int32_t>(begin),
       .end_layer = first + static_cast<int32_t>(spec_.layers.size())});
}

// Gathers the rows of the head's operand whose logits are wanted, where the operand has all tokens.
// The buffers of branch outputs and of the sampled rows' residual are free by now.
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

// Multiplies by the output head: logits [R, vocab]. On a rank the ranks put their columns of the
// vocabulary side by side.
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
  if (!rank_.is_alone()) ops_.rank_ops()->gather_logits({.part = part, .out = logits});
  return logits;
}

// The taps that the macro-op which passes the point is given; empty: it runs plain. `rows` says
// which rows of the tap table the tokens there use.
ops::Taps LayerwiseDecoder::taps_at(size_t layer, tap::Site site, const ForwardBatch& batch,
                                    const ops::TapBatch& rows) const {
  const tap::Point point{spec_.stage.first_layer + static_cast<int32_t>(layer), site};
  const bool is_tapped = batch.tapped == nullptr || batch.tapped->has(point);
  if (batch.tap_table == nullptr || !is_tapped) return {};
  return {batch.tap_table, &rows, point.index()};
}

// Runs the layer's mixer on `in`, what it has read of the residual x.
Mixed LayerwiseDecoder::mix_layer(size_t layer, const View& x, const Operand& in,
                                  const ForwardBatch& batch) {
  kept_.enter(layer, x, *residual_, batch);
  if (!spec_.layers[layer].has_mixer()) {
    if (layer + 1 == spec_.layers.size()) end_patterns(batch, 0);
    return {};
  }
  const LayerStep step = layer_step(layer, batch);
  Mixed mixed = visit_branch(spec_.layers[layer].mixer, weights_.layers[layer].mixer,
                             [&](const auto& mixer, const auto& mixer_weights) {
                               return mix(mixer, mixer_weights, in, step);
                             });
  if (layer + 1 == spec_.layers.size()) end_patterns(batch, 0);
  tap_mixed(mixed, taps_at(layer, tap::Site::kAttnZ, batch, batch.taps), step);
  return mixed;
}

// Reads the residual for the layer's mixer. Without one its MLP will read it, and what was written
// is settled here. `rows` are the tap rows of the tokens in x.
Operand LayerwiseDecoder::enter_layer(size_t layer, const View& x, const ForwardBatch& batch,
                                      const ops::TapBatch& rows) {
  if (!spec_.layers[layer].has_mixer()) {
    residual_->settle(x, batch);
    const ops::Taps taps = taps_at(layer, tap::Site::kResidPre, batch, rows);
    if (!taps.empty()) {
      ops_.residual_norm({.x = x, .x_taps = {taps}});
      encode_at(ops_, batch, taps, x);
    }
    return {};
  }
  return residual_->read(
      x, {layer, BranchKind::kMixer},
      {.norm = weights_.layers[layer].mixer_pre_norm,
       .next = input_of(weights_.layers[layer].mixer),
       .wants_act = wants_act(spec_.layers[layer].mixer, input_of(weights_.layers[layer].mixer)),
       .x_taps = taps_at(layer, tap::Site::kResidPre, batch, rows),
       .out_taps = taps_at(layer, tap::Site::kAttnIn, batch, rows)},
      batch);
}

// Projects what the layer's mixer made, and writes it to the residual.
void LayerwiseDecoder::write_mixed(size_t layer, const View& x, const Mixed& mixed,
                                   const ForwardBatch& batch, const ops::TapBatch& rows) {
  using tap::Site;
  const LayerWeights& weights = weights_.layers[layer];
  const bool is_whole_layer = !spec_.layers[layer].has_mlp();
  const ops::LinearWeight& output = output_of(weights.mixer);
  const View mixer_out = products_.project(
      output, products_.operand_of(output, mixed.out, mixed.free), buffers_.delta);
  if (!mixed.added.empty()) ops_.residual_norm({.x = mixer_out, .delta = mixed.added});
  residual_->write(
      x, {layer, BranchKind::kMixer},
      {.delta = mixer_out,
       .delta_norm = weights.mixer_post_norm,
       .delta_taps = taps_at(layer, Site::kAttnOut, batch, rows),
       .x_taps = taps_at(layer, is_whole_layer ? Site::kResidPost : Site::kResidMid, batch, rows),
       .post_taps = taps_at(layer, Site::kAttnPostMix, batch, rows),
       .mix_taps = taps_at(layer, Site::kAttnResMix, batch, rows),
       .sum_scale = is_whole_layer ? weights.scale : 1.0f},
      batch);
}

// Runs the layer's MLP, and writes what it makes to the residual.
void LayerwiseDecoder::run_mlp(size_t layer, const View& x, const ForwardBatch& batch,
                               const ops::TapBatch& rows) {
  using tap::Site;
  const auto taps = [&](Site site) { return taps_at(layer, site, batch, rows); };
  const LayerWeights& weights = weights_.layers[layer];
  const Operand in =
      residual_->read(x, {layer, BranchKind::kMlp},
                      {.norm = weights.mlp_pre_norm,
                       .next = input_of(weights.mlp),
                       .wants_act = wants_act(spec_.layers[layer].mlp, input_of(weights.mlp)),
                       .out_taps = taps(Site::kMlpIn)},
                      batch);
  const MlpTaps mlp_taps = {.act = taps(Site::kMlpAct),
                            .router_logits = taps(Site::kRouterLogits),
                            .routed_experts = taps(Site::kRoutedExperts)};
  LayerStep step = layer_step(layer, batch);
  step.residual = x;
  const View mlp_out = visit_branch(
      spec_.layers[layer].mlp, weights.mlp, [&](const auto& mlp, const auto& mlp_weights) {
        return feed_forward(mlp, mlp_weights, in, mlp_taps, step, buffers_.delta);
      });
  const bool has_row = spec_.layer_embedding.exists();
  residual_->write(x, {layer, BranchKind::kMlp},
                   {.delta = mlp_out,
                    .delta_norm = weights.mlp_post_norm,
                    .delta_taps = taps(Site::kMlpOut),
                    .x_taps = has_row ? ops::Taps{} : taps(Site::kResidPost),
                    .post_taps = taps(Site::kMlpPostMix),
                    .mix_taps = taps(Site::kMlpResMix),
                    .sum_scale = has_row ? 1 : weights.scale,
                    .is_whole = std::visit([](const auto& mlp) { return sums_ranks(mlp); },
                                           spec_.layers[layer].mlp)},
                   batch);
  if (has_row) add_layer_row(layer, x, taps(Site::kResidPost), batch);
}

// Runs the layer from its mixer's output projection on, and reads the residual for what comes next:
// the next layer's mixer, or the output head. A stage that others are behind returns nothing, and
// leaves the residual for them. `rows` are the tap rows of the tokens in x.
Operand LayerwiseDecoder::end_layer(size_t layer, const View& x, const Mixed& mixed,
                                    const ForwardBatch& batch, const ops::TapBatch& rows) {
  if (spec_.layers[layer].has_mixer()) write_mixed(layer, x, mixed, batch, rows);
  if (spec_.layers[layer].has_mlp()) run_mlp(layer, x, batch, rows);
  if (layer + 1 < spec_.layers.size()) return enter_layer(layer + 1, x, batch, rows);
  if (!spec_.stage.is_last()) {
    residual_->settle(x, batch);
    return {};
  }
  return residual_->end(x,
                        {.norm = weights_.final_norm,
                         .next = weights_.head,
                         .out_taps = taps_at(layer, tap::Site::kFinalNorm, batch, rows)},
                        batch);
}

LayerwiseDecoder::Begun LayerwiseDecoder::begin(const ForwardBatch& batch) {
  const View x = hidden(batch.ids.num_rows());
  products_.adapt(batch.adapters, batch.adapter_mid);
  ops_.begin_attention(batch.attention);
  kept_.enter_passed(batch);
  // The first rank has taken the records of the stage before when another adds to them.
  if (!spec_.stage.is_first() && !rank_.is_alone()) end_patterns(batch, spec_.layers.size());
  if (spec_.stage.is_first()) {
    residual_->begin(x, {.table = weights_.embedding,
                         .tied = weights_.embedding.empty() ? &weights_.head : nullptr,
                         .ids = batch.ids,
                         .scale = table_scale(spec_.embed_scale, table_dtype(ops_)),
                         .out = {}});
    if (spec_.layer_embedding.exists()) layer_rows_.begin(x, batch.ids);
  }
  Operand in = enter_layer(0, x, batch, batch.taps);
  const size_t last = spec_.layers.size() - 1;
  for (size_t layer = 0; layer < last; ++layer) {
    in = end_layer(layer, x, mix_layer(layer, x, in, batch), batch, batch.taps);
  }
  const Mixed mixed = mix_layer(last, x, in, batch);
  return {x, mixed.out, mixed.buffer, mixed.free, mixed.added, mixed.added_rows};
}

View LayerwiseDecoder::finish(const Begun& begun, const ForwardBatch& batch) {
  const View& rows = batch.logits_rows;
  View x = begun.residual;
  products_.adapt(batch.adapters, batch.adapter_mid);
  if (spec_.layer_embedding.exists()) layer_rows_.resume(x.shape[0]);
  Mixed mixed{begun.mixed, begun.buffer, begun.free, begun.added, begun.added_rows};
  const ops::TapBatch* tapped = &batch.taps;
  const bool keeps_all_rows =
      batch.keep_all_rows || kept_.wants_all_normed() || !spec_.stage.is_last();
  if (rows.num_rows() < x.shape[0] && !keeps_all_rows) {
    // The last KV is written: from here on only the rows whose logits are wanted matter.
    if (rows.num_rows() == 0) return {};
    if (!mixed.out.empty()) mixed.out = gather(mixed.out, rows, mixed.free);
    if (!mixed.added.empty()) mixed.added = gather(mixed.added, rows, mixed.added_rows);
    std::swap(mixed.buffer, mixed.free);
    x = gather(x, rows, buffers_.rows_residual);
    if (spec_.layer_embedding.exists()) layer_rows_.keep(rows);
    tapped = &batch.rows_taps;
    products_.adapt(batch.rows_adapters, batch.adapter_mid);
  }
  const Operand in = end_layer(spec_.layers.size() - 1, x, mixed, batch, *tapped);
  if (!spec_.stage.is_last()) return {};
  last_ = in;
  const View read = residual_->end_row(x);
  kept_.norm(read, rows, batch);
  if (rows.num_rows() == 0) return {};
  return head(in.rows() > rows.num_rows() ? sampled(in, rows) : in);
}

// Value heads of a layer's recurrence; 0: it has none.
int32_t state_heads_of(const LayerSpec& layer) {
  if (const auto* const delta = std::get_if<GatedDelta>(&layer.mixer)) return delta->value_heads;
  const StateSpace* const space = space_of(layer);
  return space == nullptr ? 0 : space->heads;
}

// Tells the backend what steps of this model look like.
Result<void> prepare_backend(const ModelSpec& spec, const Weights& weights,
                             std::span<const ops::KvLayer> kv, ops::Ops& ops,
                             const DecoderLimits& limits) {
  ops::StepBounds bounds{.max_tokens = limits.max_tokens,
                         .max_rows = limits.max_logits_rows,
                         .max_seqs = limits.max_logits_rows,  // one row of each may be wanted
                         .hidden = spec.hidden,
                         .residual_width = residual_width(spec),
                         .max_linear_in = spec.hidden,
                         .head = spec.stage.is_last() ? &weights.head : nullptr,
                         .attention = {}};
  bounds.cuts_ops = limits.encodes || (limits.taps_shares && !ops::rank_of(ops).is_alone());
  std::vector<ops::AttentionShape> shapes;
  std::vector<ops::LinearWeight> linears;
  std::vector<ops::LinearWeight> experts;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if (const Attention* const attention = attention_of(spec.layers[i])) {
      const Softmax* const softmax = softmax_of(spec.layers[i]);
      shapes.push_back({.num_heads = attention->num_heads,
                        .window = attention->window,
                        .kv = kv[i],
                        .has_gate = softmax == nullptr});
    } else if (const LatentAttention* const latent = latent_of(spec.layers[i])) {
      shapes.push_back(
          {.num_heads = latent->shape.num_heads, .kv = kv[i], .value_dim = latent->shape.rank});
    }
    LayerWeights layer = weights.layers[i];
    for (const LinearModule& linear : layer_tensors(spec, {}, i, &layer).linears) {
      bounds.max_linear_in = std::max(bounds.max_linear_in, linear.in.count());
      (linear.experts == 0 ? linears : experts).push_back(*linear.target);
    }
    if (const auto* const mlp = std::get_if<Experts>(&spec.layers[i].mlp)) {
      bounds.max_chosen = std::max(bounds.max_chosen, mlp->chosen);
    }
    bounds.max_state_heads = std::max(bounds.max_state_heads, state_heads_of(spec.layers[i]));
  }
  bounds.linears = linears;
  bounds.experts = experts;
  bounds.attention = shapes;
  return ops.prepare(bounds);
}

}  // namespace

Result<std::unique_ptr<Decoder>> Decoder::make(const ModelSpec& spec, const Weights& weights,
                                               std::span<const ops::KvLayer> kv, ops::Ops& ops,
                                               const DecoderLimits& limits, const HiddenPool& kept,
                                               const ops::View& final_rows,
                                               std::span<const LayerState> states) {
  RUDDER_TRY_VOID(check_facets(spec, ops));
  check_weights(spec, weights, ops::rank_of(ops));
  RUDDER_CHECK(kv.size() == spec.layers.size());
  RUDDER_CHECK(states.size() == (keeps_states(spec) ? spec.layers.size() : 0));
  RUDDER_TRY(DecoderBuffers buffers, DecoderBuffers::allocate(spec, limits, ops));
  RUDDER_TRY(std::unique_ptr<Decoder> decoder,
             LayerwiseDecoder::make(spec, weights, kv, ops, limits.max_tokens, std::move(buffers),
                                    kept, final_rows, states));
  RUDDER_TRY_VOID(prepare_backend(spec, weights, kv, ops, limits));
  return decoder;
}

int64_t Decoder::workspace_bytes(const ModelSpec& spec, const DecoderLimits& limits,
                                 tensor::DType act, ops::Rank rank) {
  return DecoderBuffers::bytes(spec, limits, act, rank);
}

}  // namespace rudder::model
