// Which weights are arguments of a module (model_text.h), and in which order.
#include <iterator>

#include "rudder/pjrt/model_text.h"

namespace rudder::pjrt {
namespace {

using model::Attention;
using model::GatedMlp;
using model::LayerSpec;

// The layer's tensors that a part reads.
bool has_read_mixer(Part part) {
  return part == Part::kPass || part == Part::kLayer || part == Part::kReadMixer;
}
bool has_mix(Part part) {
  return part == Part::kPass || part == Part::kLayer || part == Part::kMix;
}
bool has_mixed(Part part) {
  return part == Part::kPass || part == Part::kLayer || part == Part::kMixed;
}
bool has_read_mlp(Part part) {
  return part == Part::kPass || part == Part::kLayer || part == Part::kReadMlp;
}
bool has_mlp_act(Part part) {
  return part == Part::kPass || part == Part::kLayer || part == Part::kMlpAct;
}
bool has_scale(Part part) {
  return part == Part::kPass || part == Part::kLayer;
}
bool has_mlp_out(Part part) {
  return part == Part::kPass || part == Part::kLayer || part == Part::kMlpOut;
}

void list_layer(const ModelShape& shape, Part part, int32_t layer, std::vector<WeightRef>& out) {
  const LayerSpec& spec = shape.spec.layers[static_cast<size_t>(layer)];
  const Attention& attention = *attention_of(spec);
  const GatedMlp& mlp = *gated_mlp_of(spec);
  const int64_t hidden = shape.spec.hidden;
  const auto vector = [&](bool is_there, WeightName name, int64_t width) {
    if (is_there) out.push_back({name, layer, {Elt::kF32, {width}}});
  };
  const auto matrix = [&](WeightName name, int64_t rows, int64_t width) {
    out.push_back({name, layer, {shape.numbers, {rows, width}}});
  };
  vector(has_read_mixer(part) && spec.norms.pre, WeightName::kMixerPreNorm, hidden);
  if (has_mix(part)) {
    const bool per_head = attention.qk_norm == model::QkNorm::kPerHead;
    const bool is_normed = attention.qk_norm != model::QkNorm::kNone;
    matrix(WeightName::kQkv, attention.qkv_width(), hidden);
    vector(attention.qkv_bias, WeightName::kQkvBias, attention.qkv_width());
    vector(is_normed, WeightName::kQNorm, per_head ? attention.head_dim : attention.q_width());
    vector(is_normed && attention.own_kv, WeightName::kKNorm,
           per_head ? attention.head_dim : attention.kv_width());
    vector(attention.v_norm && attention.own_kv, WeightName::kVNorm, attention.head_dim);
    vector(softmax_of(spec)->sinks, WeightName::kSinks, attention.num_heads);
  }
  if (has_mixed(part)) {
    matrix(WeightName::kOut, hidden, attention.q_width());
    vector(attention.out_bias, WeightName::kOutBias, hidden);
    vector(spec.norms.post, WeightName::kMixerPostNorm, hidden);
  }
  vector(has_read_mlp(part) && spec.norms.pre, WeightName::kMlpPreNorm, hidden);
  if (has_mlp_act(part)) {
    matrix(WeightName::kGateUp, int64_t{2} * mlp.width, hidden);
    vector(mlp.bias, WeightName::kGateUpBias, int64_t{2} * mlp.width);
  }
  if (has_mlp_out(part)) {
    matrix(WeightName::kDown, hidden, mlp.width);
    vector(mlp.bias, WeightName::kDownBias, hidden);
    vector(spec.norms.post, WeightName::kMlpPostNorm, hidden);
  }
  if (has_scale(part) && spec.has_scale) {
    out.push_back({WeightName::kScale, layer, {Elt::kF32, {}}});
  }
}

}  // namespace

bool reads_kv(Part part) {
  return part == Part::kPass || part == Part::kLayer || part == Part::kMix;
}

std::vector<WeightRef> weight_list(const ModelShape& shape, Part part, int32_t layer) {
  const int64_t hidden = shape.spec.hidden;
  const int64_t vocab = shape.spec.vocab;
  std::vector<WeightRef> out;
  if (part == Part::kPass || part == Part::kEmbed) {
    out.push_back({WeightName::kTable, 0, {shape.numbers, {vocab, hidden}}});
  }
  if (part == Part::kPass || part == Part::kEnd) {
    out.push_back({WeightName::kFinalNorm, 0, {Elt::kF32, {hidden}}});
  }
  if (part == Part::kHead) {
    out.push_back({WeightName::kHead, 0, {shape.numbers, {vocab, hidden}}});
  }
  if (reads_kv(part)) {
    const auto first = static_cast<size_t>(part == Part::kPass ? 0 : layer);
    const size_t end = part == Part::kPass ? shape.spec.layers.size() : first + 1;
    for (int32_t i = 0; i < std::ssize(shape.spec.ropes); ++i) {
      bool is_used = false;
      for (size_t l = first; l < end; ++l) {
        is_used = is_used || attention_of(shape.spec.layers[l])->rope == i;
      }
      if (!is_used) continue;
      const int64_t half = shape.spec.ropes[static_cast<size_t>(i)].rotary_dim / 2;
      out.push_back({WeightName::kRope, i, {Elt::kF32, {shape.max_seq_len, 2, half}}});
    }
  }
  if (part == Part::kPass) {
    for (int32_t i = 0; i < std::ssize(shape.spec.layers); ++i) list_layer(shape, part, i, out);
  } else {
    list_layer(shape, part, layer, out);
  }
  return out;
}

}  // namespace rudder::pjrt
