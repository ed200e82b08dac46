// Mistral 7B and Nemo: a sliding window in every layer, or none.
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

constexpr std::string_view kMistralDefaults = R"({
  "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu",
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "sliding_window": 4096})";

Result<ModelSpec> read_mistral(const weights::HfConfig& config) {
  RUDDER_TRY(const weights::HfConfig whole, with_class_defaults(config, kMistralDefaults));
  RUDDER_TRY(ModelSpec spec, llama_like(whole));
  const std::vector<bool> sliding(spec.layers.size(), whole.has("sliding_window"));
  RUDDER_TRY_VOID(set_windows(whole, sliding, spec));
  return spec;
}

}  // namespace

Architecture mistral() {
  return {"MistralForCausalLM", "mistral", read_mistral, {}, "", "MistralModel"};
}

}  // namespace rudder::model
