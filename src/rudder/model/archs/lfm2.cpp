// LFM2, dense: some layers have attention, the others a gated short convolution.
#include <fmt/format.h>

#include <cmath>
#include <string>
#include <vector>

#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

using weights::HfConfig;

constexpr std::string_view kLfm2Defaults = R"({
  "vocab_size": 65536, "hidden_size": 2560, "intermediate_size": 12288, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 128000,
  "norm_eps": 1e-5, "hidden_act": "silu", "conv_L_cache": 3, "block_multiple_of": 256})";
constexpr int64_t kWidestMlp = 1 << 20;
constexpr int64_t kLongestConv = 1 << 8;

// Which layers have a convolution: "layer_types", or all but those of "full_attn_idxs".
Result<std::vector<bool>> conv_layers(const HfConfig& config, size_t num_layers) {
  std::vector<bool> out(num_layers, false);
  constexpr std::string_view kIndices = "full_attn_idxs";
  if (!config.has("layer_types")) {
    if (!config.has(kIndices)) return out;
    RUDDER_TRY(const std::vector<double> indices, config.numbers(kIndices));
    out.assign(num_layers, true);
    for (const double index : indices) {
      if (index < 0 || index >= static_cast<double>(num_layers)) {
        return fail(ErrorCode::kCorruptFile, fmt::format("there is no layer {}", index),
                    config.where(kIndices));
      }
      out[static_cast<size_t>(index)] = false;
    }
    return out;
  }
  config.has(kIndices);  // without effect then
  RUDDER_TRY(const std::vector<std::string> types, config.strings("layer_types"));
  if (types.size() != num_layers) {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("{} layer types for {} layers", types.size(), num_layers),
                config.where("layer_types"));
  }
  for (size_t i = 0; i < num_layers; ++i) {
    if (types[i] != "conv" && types[i] != "full_attention") {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("the layer type '{}' is not known", types[i]),
                  config.where("layer_types"));
    }
    out[i] = types[i] == "conv";
  }
  return out;
}

// The width of the MLP is two thirds of what the config says, in whole multiples, where it is
// adjusted.
Result<int32_t> mlp_width(const HfConfig& config) {
  RUDDER_TRY(const int64_t told, config.integer_or("block_ff_dim", 0, 1, kWidestMlp));
  RUDDER_TRY(int64_t width, config.integer("intermediate_size", 1, kWidestMlp));
  if (told > 0) width = told;
  RUDDER_TRY(const bool adjusts, config.boolean_or("block_auto_adjust_ff_dim", true));
  RUDDER_TRY(const double factor, config.number_or("block_ffn_dim_multiplier", 1));
  RUDDER_TRY(const int64_t multiple, config.integer("block_multiple_of", 1, kWidestMlp));
  if (!adjusts) return static_cast<int32_t>(width);
  width = static_cast<int64_t>(2 * static_cast<double>(width) / 3);
  width = static_cast<int64_t>(factor * static_cast<double>(width));
  width = (width + multiple - 1) / multiple * multiple;
  if (width < 1 || width > kWidestMlp) {
    return fail(ErrorCode::kCorruptFile, fmt::format("an MLP of {} neurons", width),
                config.where("block_ffn_dim_multiplier"));
  }
  return static_cast<int32_t>(width);
}

Result<ModelSpec> read_lfm2(const HfConfig& config) {
  RUDDER_TRY(const HfConfig known, with_class_defaults(config, kLfm2Defaults));
  RUDDER_TRY(const double eps, known.number("norm_eps"));
  const HfConfig whole = known.with_defaults(fmt::format(R"({{"rms_norm_eps": {:.17g}}})", eps));
  RUDDER_TRY(ModelSpec spec, llama_like(whole, {.tied_head = true}));
  RUDDER_TRY(spec.tied_head, whole.boolean_or("tie_embedding", spec.tied_head));
  set_qk_norm(spec, QkNorm::kPerHead);
  ShortConv conv{.width = spec.hidden};
  RUDDER_TRY(const int64_t length, whole.integer("conv_L_cache", 1, kLongestConv));
  conv.length = static_cast<int32_t>(length);
  RUDDER_TRY(conv.bias, whole.boolean_or("conv_bias", false));
  RUDDER_TRY(const int32_t width, mlp_width(whole));
  RUDDER_TRY(const std::vector<bool> convolves, conv_layers(whole, spec.layers.size()));
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    gated_mlp_of(spec.layers[i])->width = width;
    if (convolves[i]) spec.layers[i].mixer = conv;
  }
  return spec;
}

}  // namespace

Architecture lfm2() {
  WeightNames names;
  names.final_norm = "model.embedding_norm";
  names.mixer_pre_norm = "operator_norm";
  names.mlp_pre_norm = "ffn_norm";
  names.of<GatedMlp>().gate_up = {"feed_forward.w1", "feed_forward.w3"};
  names.of<GatedMlp>().down = "feed_forward.w2";
  names.of<Attention>().out = "self_attn.out_proj";
  names.of<Attention>().q_norm = "self_attn.q_layernorm";
  names.of<Attention>().k_norm = "self_attn.k_layernorm";
  return {"Lfm2ForCausalLM", "lfm2", read_lfm2, names, "", "Lfm2Model"};
}

}  // namespace rudder::model
