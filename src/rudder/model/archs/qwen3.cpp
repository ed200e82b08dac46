// Qwen 3 (dense): RMS norm of each q and k head before the rope.
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

// head_dim is not the hidden size by the number of heads.
constexpr std::string_view kQwen3Defaults = R"({
  "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 32, "hidden_act": "silu",
  "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "sliding_window": 4096,
  "max_window_layers": 28, "head_dim": 128})";

Result<ModelSpec> read_qwen3(const weights::HfConfig& config) {
  RUDDER_TRY(const weights::HfConfig whole, with_class_defaults(config, kQwen3Defaults));
  RUDDER_TRY(ModelSpec spec, llama_like(whole));
  set_qk_norm(spec, QkNorm::kPerHead);
  RUDDER_TRY_VOID(set_windows_above(whole, spec));
  return spec;
}

}  // namespace

Architecture qwen3() {
  return {"Qwen3ForCausalLM", "qwen3", read_qwen3, {}, "", "Qwen3Model"};
}

}  // namespace rudder::model
