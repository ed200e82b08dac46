// Qwen 2 and 2.5: biases on q, k and v; on request a window in the upper layers.
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

constexpr std::string_view kQwen2Defaults = R"({
  "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 32, "hidden_act": "silu",
  "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "sliding_window": 4096,
  "max_window_layers": 28})";

Result<ModelSpec> read_qwen2(const weights::HfConfig& config) {
  RUDDER_TRY(const weights::HfConfig whole, with_class_defaults(config, kQwen2Defaults));
  RUDDER_TRY(ModelSpec spec, llama_like(whole));
  for (LayerSpec& layer : spec.layers) {
    attention_of(layer)->qkv_bias = true;
    attention_of(layer)->out_bias = false;
  }
  RUDDER_TRY_VOID(set_windows_above(whole, spec));
  return spec;
}

}  // namespace

Architecture qwen2() {
  return {"Qwen2ForCausalLM", "qwen2", read_qwen2, {}, "", "Qwen2Model"};
}

}  // namespace rudder::model
