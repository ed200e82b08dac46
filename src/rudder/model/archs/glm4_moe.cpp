// GLM 4.5: mixtures of experts beside an MLP that all tokens share, behind some first layers that
// have none; a router of sigmoids with a correction; half of a head is rotated.
#include <fmt/format.h>

#include <algorithm>

#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/expert_layers.h"
#include "rudder/model/archs/latent_like.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

constexpr std::string_view kGlm4MoeDefaults = R"({
  "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46,
  "num_attention_heads": 96, "num_key_value_heads": 8, "hidden_act": "silu",
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "partial_rotary_factor": 0.5,
  "moe_intermediate_size": 1408, "num_experts_per_tok": 8, "first_k_dense_replace": 1})";

Result<ModelSpec> read_glm4_moe(const weights::HfConfig& config) {
  RUDDER_TRY(weights::HfConfig whole, with_class_defaults(config, kGlm4MoeDefaults));
  if (!whole.has("n_routed_experts") && !whole.has("num_local_experts")) {
    RUDDER_TRY(whole, with_class_defaults(whole, R"({"n_routed_experts": 128})"));
  }
  RUDDER_TRY_VOID(whole.number("partial_rotary_factor"));  // the rope's own goes before it
  LlamaDefaults defaults;
  defaults.rope.is_partial = true;
  RUDDER_TRY(ModelSpec spec, llama_like(whole, defaults));
  for (LayerSpec& layer : spec.layers) attention_of(layer)->out_bias = false;
  RUDDER_TRY(const bool qk_norm, whole.boolean_or("use_qk_norm", false));
  if (qk_norm) set_qk_norm(spec, QkNorm::kPerHead);
  RUDDER_TRY(Experts experts, read_experts_beside_shared(whole, spec));
  RUDDER_TRY(experts.router, read_grouped_router(whole, experts));
  RUDDER_TRY_VOID(set_experts_from(whole, experts, spec));
  return spec;
}

}  // namespace

Architecture glm4_moe() {
  return {"Glm4MoeForCausalLM",
          "glm4_moe",
          read_glm4_moe,
          shared_expert_names({"model.layers.46.", "model.layers.92."}),
          "",
          "Glm4MoeModel"};
}

}  // namespace rudder::model
