// Mixtral: Mistral whose MLPs are mixtures of experts.
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/expert_layers.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

constexpr std::string_view kMixtralDefaults = R"({
  "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu",
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "num_experts_per_tok": 2})";

Result<ModelSpec> read_mixtral(const weights::HfConfig& config) {
  RUDDER_TRY(weights::HfConfig whole, with_class_defaults(config, kMixtralDefaults));
  if (!whole.has("num_experts") && !whole.has("num_local_experts")) {
    RUDDER_TRY(whole, with_class_defaults(whole, R"({"num_local_experts": 8})"));
  }
  LlamaDefaults defaults;
  defaults.rope.theta = 1e6;
  RUDDER_TRY(ModelSpec spec, llama_like(whole, defaults));
  const std::vector<bool> sliding(spec.layers.size(), whole.has("sliding_window"));
  RUDDER_TRY_VOID(set_windows(whole, sliding, spec));
  RUDDER_TRY(Experts experts, read_experts(whole, spec, {.width = "intermediate_size"}));
  experts.router.renormalises = true;
  for (LayerSpec& layer : spec.layers) layer.mlp = experts;
  return spec;
}

WeightNames mixtral_names() {
  WeightNames names;
  names.of<Experts>() = {.router = "block_sparse_moe.gate",
                         .experts = "block_sparse_moe.experts",
                         .gate = "w1",
                         .up = "w3",
                         .down = "w2"};
  return names;
}

}  // namespace

Architecture mixtral() {
  return {"MixtralForCausalLM", "mixtral", read_mixtral, mixtral_names(), "", "MixtralModel"};
}

}  // namespace rudder::model
