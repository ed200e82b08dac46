// OLMoE: queries and keys are normed over all heads; every layer is a mixture of experts.
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/expert_layers.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

constexpr std::string_view kOlmoeDefaults = R"({
  "vocab_size": 50304, "hidden_size": 2048, "intermediate_size": 2048, "num_hidden_layers": 16,
  "num_attention_heads": 16, "hidden_act": "silu", "max_position_embeddings": 4096,
  "rms_norm_eps": 1e-5, "num_experts_per_tok": 8})";

Result<ModelSpec> read_olmoe(const weights::HfConfig& config) {
  RUDDER_TRY(weights::HfConfig whole, with_class_defaults(config, kOlmoeDefaults));
  if (!whole.has("num_experts") && !whole.has("num_local_experts")) {
    RUDDER_TRY(whole, with_class_defaults(whole, R"({"num_experts": 64})"));
  }
  RUDDER_TRY(ModelSpec spec, llama_like(whole));
  set_qk_norm(spec, QkNorm::kAllHeads);
  RUDDER_TRY(Experts experts, read_experts(whole, spec, {.width = "intermediate_size"}));
  RUDDER_TRY(experts.router.renormalises, whole.boolean_or("norm_topk_prob", false));
  for (LayerSpec& layer : spec.layers) layer.mlp = experts;
  return spec;
}

}  // namespace

Architecture olmoe() {
  return {"OlmoeForCausalLM", "olmoe", read_olmoe, {}, "", "OlmoeModel"};
}

}  // namespace rudder::model
