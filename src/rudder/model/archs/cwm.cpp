// CWM: Llama 3's mathematics with a window in three layers of four.
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

using weights::HfConfig;

constexpr std::string_view kCwmDefaults = R"({
  "vocab_size": 128256, "hidden_size": 6144, "intermediate_size": 21504, "num_hidden_layers": 64,
  "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu",
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "sliding_window": 8192})";
// Where the config has none.
constexpr std::string_view kCwmRope = R"({"rope_parameters": {
  "rope_type": "llama3", "rope_theta": 1000000.0, "factor": 16.0, "low_freq_factor": 1.0,
  "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}})";

Result<ModelSpec> read_cwm(const HfConfig& config) {
  RUDDER_TRY(HfConfig whole, with_class_defaults(config, kCwmDefaults));
  if (!whole.has("rope_scaling")) whole = whole.with_defaults(kCwmRope);
  RUDDER_TRY(ModelSpec spec, llama_like(whole, {.rope = {.theta = 1e6}}));
  for (LayerSpec& layer : spec.layers) {
    attention_of(layer)->qkv_bias = false;
    attention_of(layer)->out_bias = false;
  }
  const auto all_but_each_fourth = [](size_t layer, int64_t) { return layer % 4 != 0; };
  RUDDER_TRY(const std::vector<bool> sliding,
             sliding_layers(whole, spec.layers.size(), all_but_each_fourth, 0));
  if (whole.has("sliding_window")) RUDDER_TRY_VOID(set_windows(whole, sliding, spec));
  return spec;
}

}  // namespace

Architecture cwm() {
  return {"CwmForCausalLM", "cwm", read_cwm, {}, "", "CwmModel"};
}

}  // namespace rudder::model
