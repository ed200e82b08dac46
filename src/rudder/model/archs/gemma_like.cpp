#include "rudder/model/archs/gemma_like.h"

#include <fmt/format.h>

#include <cmath>

namespace rudder::model {

using weights::HfConfig;

Result<float> soft_cap(const HfConfig& config, std::string_view key) {
  RUDDER_TRY(const double cap, config.number_or(key, 0));
  if (cap < 0) {
    return fail(ErrorCode::kCorruptFile, fmt::format("'{}' is {}, a negative cap", key, cap),
                config.where(key));
  }
  return static_cast<float>(cap);
}

Result<ModelSpec> gemma_like(const HfConfig& config, const LlamaDefaults& defaults) {
  RUDDER_TRY(const bool both_ways, config.boolean_or("use_bidirectional_attention", false));
  if (both_ways) {
    return fail(ErrorCode::kUnsupported, "attention to later tokens is not supported",
                config.where("use_bidirectional_attention"));
  }
  RUDDER_TRY(ModelSpec spec, llama_like(config, defaults));
  spec.embed_scale = std::sqrt(static_cast<float>(spec.hidden));
  RUDDER_TRY(spec.final_softcap, soft_cap(config, "final_logit_softcapping"));
  RUDDER_TRY(const float attention_cap, soft_cap(config, "attn_logit_softcapping"));
  RUDDER_TRY(const double query_scalar, config.number("query_pre_attn_scalar"));
  if (query_scalar <= 0) {
    return fail(ErrorCode::kCorruptFile, fmt::format("it is {}, not positive", query_scalar),
                config.where("query_pre_attn_scalar"));
  }
  for (LayerSpec& layer : spec.layers) {
    Attention& attention = *attention_of(layer);
    attention.weighting = Softmax{.softcap = attention_cap, .sinks = false};
    attention.scale = static_cast<float>(1 / std::sqrt(query_scalar));
    layer.norms.post = true;
  }
  return spec;
}

WeightNames gemma_names() {
  WeightNames names;
  names.mixer_post_norm = "post_attention_layernorm";
  names.mlp_pre_norm = "pre_feedforward_layernorm";
  names.mlp_post_norm = "post_feedforward_layernorm";
  names.norm_offset = 1;
  return names;
}

}  // namespace rudder::model
