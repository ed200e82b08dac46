// AsyncT: gates instead of softmaxes (ops::FirGate), UClipNorm before and after each branch and of
// each q and k head, ReGLU. Its keys are Qwen 3's and those below.
#include <fmt/format.h>

#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

using weights::HfConfig;

// Whether a norm's parameter is a number a channel ("channel") or one for all ("scalar").
Result<bool> is_per_channel(const HfConfig& config, std::string_view key, bool fallback) {
  RUDDER_TRY(const std::string extent, config.string_or(key, fallback ? "channel" : "scalar"));
  if (extent == "channel") return true;
  if (extent == "scalar") return false;
  return fail(ErrorCode::kUnsupported,
              fmt::format("'{}' is neither 'channel' nor 'scalar'", extent), config.where(key));
}

Result<Gate> read_gate(const HfConfig& config) {
  Gate gate;
  RUDDER_TRY(const int64_t length, config.integer_or("fir_k", gate.length, 1, ops::kMaxFirLength));
  gate.length = static_cast<int32_t>(length);
  RUDDER_TRY(gate.relu_pre, config.boolean_or("fir_relu_pre", gate.relu_pre));
  if (!config.has("fir_clip")) return gate;
  RUDDER_TRY(const std::vector<double> clip, config.numbers("fir_clip"));
  if (clip.size() != 2 || !(clip[0] < clip[1])) {
    return fail(ErrorCode::kCorruptFile, "it is not a lower bound and a higher one",
                config.where("fir_clip"));
  }
  gate.low = static_cast<float>(clip[0]);
  gate.high = static_cast<float>(clip[1]);
  return gate;
}

Result<UClipNorm> read_norm(const HfConfig& config, std::string_view alpha, std::string_view gamma,
                            const UClipNorm& fallback) {
  UClipNorm norm;
  RUDDER_TRY(norm.alpha_per_channel, is_per_channel(config, alpha, fallback.alpha_per_channel));
  RUDDER_TRY(norm.weight_per_channel, is_per_channel(config, gamma, fallback.weight_per_channel));
  return norm;
}

Result<ModelSpec> read_asynct(const HfConfig& config) {
  RUDDER_TRY(ModelSpec spec, llama_like(config, {.activation = "relu"}));
  RUDDER_TRY(const Gate gate, read_gate(config));
  RUDDER_TRY(const UClipNorm qk_norm,
             read_norm(config, "qk_norm_alpha", "qk_norm_gamma",
                       {.alpha_per_channel = true, .weight_per_channel = false}));
  RUDDER_TRY(spec.norm, read_norm(config, "norm_alpha", "norm_gamma",
                                  {.alpha_per_channel = false, .weight_per_channel = true}));
  for (LayerSpec& layer : spec.layers) {
    layer.norms.post = true;
    Attention& attention = *attention_of(layer);
    attention.weighting = gate;
    attention.qk_norm = QkNorm::kPerHead;
    attention.qk_norm_kind = qk_norm;
  }
  RUDDER_TRY_VOID(set_windows_above(config, spec));
  return spec;
}

WeightNames asynct_names() {
  WeightNames names;
  names.mixer_post_norm = "post_attention_layernorm";
  names.mlp_pre_norm = "pre_feedforward_layernorm";
  names.mlp_post_norm = "post_feedforward_layernorm";
  return names;
}

}  // namespace

Architecture asynct() {
  return {"AsyncTForCausalLM", "asynct", read_asynct, asynct_names()};
}

}  // namespace rudder::model
