#include "rudder/model/decoder.h"

#include <algorithm>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/model/decoder_buffers.h"

namespace rudder::model {
namespace {

using tensor::DType;
using tensor::View;

// The start of a flat buffer as [rows, width].
View shaped(const View& buffer, int64_t rows, int64_t width) {
  View view = buffer.rows(0, rows * width);
  view.shape = {rows, width};
  return view;
}

// What a product takes: act, or F8E4M3 with a scale a row, as its weight wants it.
struct Operand {
  View x;
  View scale;

  int64_t rows() const { return x.shape[0]; }
};

class LayerwiseDecoder final : public Decoder {
 public:
  LayerwiseDecoder(const ModelSpec& spec, const Weights& weights, std::span<const ops::KvLayer> kv,
                   ops::Ops& ops, DecoderBuffers buffers)
      : spec_(spec),
        weights_(weights),
        kv_(kv.begin(), kv.end()),
        ops_(ops),
        buffers_(std::move(buffers)) {
    for (size_t i = 0; i < kv_.size(); ++i) {
      if (kv_[i].storage.dtype != DType::kF8E4M3) continue;
      kv_[i].k_scale = weights_.layers[i].k_scale;
      kv_[i].v_scale = weights_.layers[i].v_scale;
    }
  }

  View forward(const ForwardBatch& batch) override;
  View more_logits(const View& rows) override { return head(sampled(last_, rows)); }

 private:
  View attend(size_t layer, const Operand& in, const ForwardBatch& batch);
  View feed_forward(size_t layer, const Operand& in, const ops::Taps& taps);
  Operand add_and_norm(const ops::ResidualNormArgs& args, const ops::LinearWeight& next);
  Operand sampled(const Operand& in, const View& rows);
  View head(const Operand& in);
  View project(const ops::LinearWeight& weight, const Operand& in, const View& buffer);
  View gather(const View& in, const View& rows, const View& buffer);
  Operand place_for(const ops::LinearWeight& weight, int64_t rows, const View& buffer) const;
  Operand operand_of(const ops::LinearWeight& weight, const View& x, const View& buffer);

  const ModelSpec spec_;
  const Weights& weights_;
  std::vector<ops::KvLayer> kv_;
  ops::Ops& ops_;
  const DecoderBuffers buffers_;  // shaped to the step at hand
  Operand last_;                  // the head's, of the last forward; more_logits() reads it again
};

View LayerwiseDecoder::project(const ops::LinearWeight& weight, const Operand& in,
                               const View& buffer) {
  const View out = shaped(buffer, in.rows(), weight.out);
  ops_.linear({.x = in.x, .x_scale = in.scale, .weight = &weight, .out = out});
  return out;
}

View LayerwiseDecoder::gather(const View& in, const View& rows, const View& buffer) {
  const View out = shaped(buffer, rows.num_rows(), in.shape[1]);
  ops_.gather_rows({.x = in, .rows = rows, .out = out});
  return out;
}

// Where an op writes what `weight` will take. An operand is used before the next one is written.
Operand LayerwiseDecoder::place_for(const ops::LinearWeight& weight, int64_t rows,
                                    const View& buffer) const {
  Operand place{.x = shaped(buffer, rows, weight.in), .scale = {}};
  if (weight.x_dtype == DType::kF8E4M3) {
    place.x.dtype = DType::kF8E4M3;
    place.scale = buffers_.scale.rows(0, rows);
  }
  return place;
}

// x itself, or x quantised into `buffer`.
Operand LayerwiseDecoder::operand_of(const ops::LinearWeight& weight, const View& x,
                                     const View& buffer) {
  if (weight.x_dtype != DType::kF8E4M3) return {.x = x, .scale = {}};
  const Operand place = place_for(weight, x.shape[0], buffer);
  ops_.quantise({.x = x, .out = place.x, .out_scale = place.scale});
  return place;
}

// [T, num_heads * head_dim], before the output projection.
View LayerwiseDecoder::attend(size_t layer, const Operand& in, const ForwardBatch& batch) {
  const AttentionSpec& spec = spec_.layers[layer].attention;
  const LayerWeights& weights = weights_.layers[layer];
  const View qkv = project(weights.qkv, in, buffers_.qkv);
  const View q = shaped(buffers_.q, in.rows(), spec.q_width());
  ops_.qkv_prep({.qkv = qkv,
                 .num_heads = spec.num_heads,
                 .q_norm = weights.q_norm,
                 .k_norm = weights.k_norm,
                 .rope = buffers_.ropes[static_cast<size_t>(spec.rope)],
                 .rope_row = batch.positions,
                 .kv_slot = batch.kv_slot,
                 .kv = kv_[layer],
                 .q_out = q});
  const View out = shaped(buffers_.attended, in.rows(), spec.q_width());
  ops_.attention({.q = q,
                  .kv = kv_[layer],
                  .num_heads = spec.num_heads,
                  .scale = spec.scale,
                  .window = spec.window,
                  .softcap = spec.softcap,
                  .out = out});
  return out;
}

// [T, hidden].
View LayerwiseDecoder::feed_forward(size_t layer, const Operand& in, const ops::Taps& taps) {
  const MlpSpec& spec = spec_.layers[layer].mlp;
  const LayerWeights& weights = weights_.layers[layer];
  const View gate_up = project(weights.gate_up, in, buffers_.gate_up);
  const Operand activated = place_for(weights.down, in.rows(), buffers_.activated);
  ops_.gated_act({.x = gate_up,
                  .activation = spec.activation,
                  .out = activated.x,
                  .out_scale = activated.scale,
                  .taps = taps});
  return project(weights.down, activated, buffers_.delta);
}

// Runs the op, if it does anything, with an output in the form that `next` takes; what `next`
// takes: the normed row, or x itself where there is no norm.
Operand LayerwiseDecoder::add_and_norm(const ops::ResidualNormArgs& args,
                                       const ops::LinearWeight& next) {
  ops::ResidualNormArgs placed = args;
  Operand normed;
  if (!args.norm.empty()) {
    normed = place_for(next, args.x.shape[0], buffers_.normed);
    placed.out = normed.x;
    placed.out_scale = normed.scale;
  } else {
    placed.out_taps = {};
  }
  const bool is_tapped = !args.x_taps[0].empty() || !args.x_taps[1].empty();
  if (!args.delta.empty() || !args.norm.empty() || is_tapped) ops_.residual_norm(placed);
  return args.norm.empty() ? operand_of(next, args.x, buffers_.normed) : normed;
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
  ops_.logits({.x = in.x,
               .x_scale = in.scale,
               .head = &weights_.head,
               .softcap = spec_.final_softcap,
               .out = logits});
  return logits;
}

View LayerwiseDecoder::forward(const ForwardBatch& batch) {
  using tap::Site;
  const View& rows = batch.logits_rows;
  View x = shaped(buffers_.residual, batch.ids.num_rows(), spec_.hidden);
  const ops::TapBatch* tapped = &batch.taps;  // of the rows of x
  const auto taps = [&](size_t layer, Site site) -> ops::Taps {
    if (batch.tap_table == nullptr || (batch.passages & tap::passage(site)) == 0) return {};
    return {batch.tap_table, tapped, tap::Point{static_cast<int32_t>(layer), site}.index()};
  };
  ops_.plan_attention(batch.attention);
  ops_.embed({.table = weights_.embedding,
              .tied = spec_.tied_head ? &weights_.head : nullptr,
              .ids = batch.ids,
              .scale = spec_.embed_scale,
              .out = x});
  Operand in = add_and_norm({.x = x,
                             .norm = weights_.layers[0].attn_pre_norm,
                             .x_taps = {taps(0, Site::kResidPre)},
                             .out_taps = taps(0, Site::kAttnIn)},
                            weights_.layers[0].qkv);
  for (size_t i = 0; i < spec_.layers.size(); ++i) {
    const bool is_last = i + 1 == spec_.layers.size();
    const LayerWeights& weights = weights_.layers[i];

    View attended = attend(i, in, batch);
    View free = buffers_.q;  // attention has used its queries
    if (is_last && rows.num_rows() < batch.ids.num_rows() && !batch.keep_all_rows) {
      // The last KV is written: from here on only the rows whose logits are wanted matter.
      if (rows.num_rows() == 0) return {};
      attended = gather(attended, rows, buffers_.q);
      free = buffers_.attended;
      x = gather(x, rows, buffers_.rows_residual);
      tapped = &batch.rows_taps;
    }
    const View attention_out =
        project(weights.attn_out, operand_of(weights.attn_out, attended, free), buffers_.delta);
    in = add_and_norm({.x = x,
                       .delta = attention_out,
                       .delta_norm = weights.attn_post_norm,
                       .norm = weights.mlp_pre_norm,
                       .delta_taps = taps(i, Site::kAttnOut),
                       .x_taps = {taps(i, Site::kResidMid)},
                       .out_taps = taps(i, Site::kMlpIn)},
                      weights.gate_up);
    const View mlp_out = feed_forward(i, in, taps(i, Site::kMlpAct));
    ops::ResidualNormArgs last{.x = x,
                               .delta = mlp_out,
                               .delta_norm = weights.mlp_post_norm,
                               .delta_taps = taps(i, Site::kMlpOut),
                               .x_taps = {taps(i, Site::kResidPost)}};
    if (is_last) {
      last.norm = weights_.final_norm;
      last.out_taps = taps(i, Site::kFinalNorm);
      in = add_and_norm(last, weights_.head);
    } else {
      last.norm = weights_.layers[i + 1].attn_pre_norm;
      last.x_taps[1] = taps(i + 1, Site::kResidPre);
      last.out_taps = taps(i + 1, Site::kAttnIn);
      in = add_and_norm(last, weights_.layers[i + 1].qkv);
    }
  }
  last_ = in;
  if (rows.num_rows() == 0) return {};
  return head(in.rows() > rows.num_rows() ? sampled(in, rows) : in);
}

// The loader binds what the spec says; this catches a loader that does not.
void check_weights(const ModelSpec& spec, const Weights& weights) {
  RUDDER_CHECK(!spec.layers.empty() && weights.layers.size() == spec.layers.size(),
               "{} layers of weights for {} layers", weights.layers.size(), spec.layers.size());
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    const LayerWeights& w = weights.layers[i];
    RUDDER_CHECK(layer.pre_norm != w.attn_pre_norm.empty(), "layer {}", i);
    RUDDER_CHECK(layer.pre_norm != w.mlp_pre_norm.empty(), "layer {}", i);
    RUDDER_CHECK(layer.post_norm != w.attn_post_norm.empty(), "layer {}", i);
    RUDDER_CHECK(layer.post_norm != w.mlp_post_norm.empty(), "layer {}", i);
    RUDDER_CHECK((layer.attention.qk_norm == QkNorm::kNone) == w.q_norm.empty(), "layer {}", i);
    RUDDER_CHECK((layer.attention.qk_norm == QkNorm::kNone) == w.k_norm.empty(), "layer {}", i);
    RUDDER_CHECK(w.qkv.in == spec.hidden && w.qkv.out == layer.attention.qkv_width(), "layer {}",
                 i);
    RUDDER_CHECK(w.attn_out.in == layer.attention.q_width() && w.attn_out.out == spec.hidden,
                 "layer {}", i);
    RUDDER_CHECK(w.gate_up.in == spec.hidden && w.gate_up.out == 2 * layer.mlp.width, "layer {}",
                 i);
    RUDDER_CHECK(w.down.in == layer.mlp.width && w.down.out == spec.hidden, "layer {}", i);
    RUDDER_CHECK(
        layer.attention.rope >= 0 && layer.attention.rope < static_cast<int32_t>(spec.ropes.size()),
        "layer {}", i);
  }
  RUDDER_CHECK(weights.head.in == spec.hidden && weights.head.out == spec.vocab);
  RUDDER_CHECK(!weights.final_norm.empty() && spec.tied_head == weights.embedding.empty());
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
                         .head = &weights.head,
                         .attention = {}};
  std::vector<ops::AttentionShape> shapes;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    shapes.push_back({layer.attention.num_heads, layer.attention.window, kv[i]});
    bounds.max_linear_in =
        std::max({bounds.max_linear_in, layer.attention.q_width(), int64_t{layer.mlp.width}});
  }
  bounds.attention = shapes;
  return ops.prepare(bounds);
}

}  // namespace

Result<std::unique_ptr<Decoder>> Decoder::make(const ModelSpec& spec, const Weights& weights,
                                               std::span<const ops::KvLayer> kv, ops::Ops& ops,
                                               const DecoderLimits& limits) {
  check_weights(spec, weights);
  RUDDER_CHECK(kv.size() == spec.layers.size());
  RUDDER_TRY(DecoderBuffers buffers, DecoderBuffers::allocate(spec, limits, ops));
  auto decoder = std::make_unique<LayerwiseDecoder>(spec, weights, kv, ops, std::move(buffers));
  RUDDER_TRY_VOID(prepare_backend(spec, weights, kv, ops, limits));
  return decoder;
}

int64_t Decoder::workspace_bytes(const ModelSpec& spec, const DecoderLimits& limits,
                                 tensor::DType act) {
  return DecoderBuffers::bytes(spec, limits, act);
}

}  // namespace rudder::model
