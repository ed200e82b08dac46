// Llama 2, 3, 3.1, 3.2 and the many models of their shape.
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

constexpr std::string_view kLlamaDefaults = R"({
  "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
  "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048,
  "rms_norm_eps": 1e-6})";

Result<ModelSpec> read_llama(const weights::HfConfig& config) {
  RUDDER_TRY(const weights::HfConfig whole, with_class_defaults(config, kLlamaDefaults));
  return llama_like(whole);
}

}  // namespace

Architecture llama() {
  return {"LlamaForCausalLM", "llama", read_llama, {}, "", "LlamaModel"};
}

}  // namespace rudder::model
