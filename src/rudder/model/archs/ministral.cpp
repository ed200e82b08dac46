// Ministral (8B, 2024): Mistral's mathematics with a window in some layers. Ministral 3: queries
// grow with the position, over a rope that YaRN stretches.
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

using weights::HfConfig;

constexpr std::string_view kMinistralDefaults = R"({
  "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu",
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "sliding_window": 4096})";
constexpr std::string_view kMinistral3Defaults = R"({
  "vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 34,
  "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu",
  "max_position_embeddings": 262144, "rms_norm_eps": 1e-5})";
// Where the config has none.
constexpr std::string_view kMinistral3Rope = R"({"rope_parameters": {
  "rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0, "beta_fast": 32.0,
  "beta_slow": 1.0, "original_max_position_embeddings": 16384, "mscale": 1.0,
  "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}})";

Result<ModelSpec> read_ministral(const HfConfig& config) {
  RUDDER_TRY(const HfConfig whole, with_class_defaults(config, kMinistralDefaults));
  RUDDER_TRY(ModelSpec spec, llama_like(whole));
  const bool has_window = whole.has("sliding_window");
  const auto all_or_none = [](size_t, int64_t windows) { return windows != 0; };
  RUDDER_TRY(const std::vector<bool> sliding,
             sliding_layers(whole, spec.layers.size(), all_or_none, has_window ? 1 : 0));
  RUDDER_TRY_VOID(set_windows(whole, sliding, spec));
  return spec;
}

Result<ModelSpec> read_ministral3(const HfConfig& config) {
  RUDDER_TRY(HfConfig whole, with_class_defaults(config, kMinistral3Defaults));
  if (!whole.has("rope_scaling")) whole = whole.with_defaults(kMinistral3Rope);
  RUDDER_TRY(ModelSpec spec, llama_like(whole));
  RUDDER_TRY(spec.query_growth, read_growth(whole));
  const std::vector<bool> sliding(spec.layers.size(), whole.has("sliding_window"));
  RUDDER_TRY_VOID(set_windows(whole, sliding, spec));
  return spec;
}

}  // namespace

Architecture ministral() {
  return {"MinistralForCausalLM", "ministral", read_ministral, {}, "", "MinistralModel"};
}

Architecture ministral3() {
  return {"Ministral3ForCausalLM", "ministral3", read_ministral3, {}, "", "Ministral3Model"};
}

}  // namespace rudder::model
