// Qwen 3 with mixtures of experts in all layers, or in some.
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/expert_layers.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

// head_dim is, where it is not told, the hidden size by the number of heads.
constexpr std::string_view kQwen3MoeDefaults = R"({
  "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24,
  "num_attention_heads": 32, "num_key_value_heads": 4, "hidden_act": "silu",
  "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "sliding_window": 4096,
  "max_window_layers": 28, "moe_intermediate_size": 768, "num_experts_per_tok": 8})";

Result<ModelSpec> read_qwen3_moe(const weights::HfConfig& config) {
  RUDDER_TRY(weights::HfConfig whole, with_class_defaults(config, kQwen3MoeDefaults));
  if (!whole.has("num_experts") && !whole.has("num_local_experts")) {
    RUDDER_TRY(whole, with_class_defaults(whole, R"({"num_experts": 128})"));
  }
  RUDDER_TRY(ModelSpec spec, llama_like(whole));
  set_qk_norm(spec, QkNorm::kPerHead);
  RUDDER_TRY_VOID(set_windows_above(whole, spec));
  RUDDER_TRY(Experts experts, read_experts(whole, spec));
  RUDDER_TRY(experts.router.renormalises, whole.boolean_or("norm_topk_prob", false));
  RUDDER_TRY(const std::vector<bool> mixtures, mixture_layers(whole, spec.layers.size()));
  for (size_t layer = 0; layer < spec.layers.size(); ++layer) {
    if (mixtures[layer]) spec.layers[layer].mlp = experts;
  }
  return spec;
}

}  // namespace

Architecture qwen3_moe() {
  return {"Qwen3MoeForCausalLM", "qwen3_moe", read_qwen3_moe, {}, "", "Qwen3MoeModel"};
}

}  // namespace rudder::model
