// GLM 4 (dense): biases on q, k and v, gate and up stored stacked, a rope of neighbours in a part
// of each head; the models of April 2025 (glm4) have norms after each branch too.
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

constexpr std::string_view kGlmDefaults = R"({
  "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 40,
  "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "hidden_act": "silu",
  "max_position_embeddings": 131072, "rms_norm_eps": 1.5625e-7, "attention_bias": true,
  "partial_rotary_factor": 0.5})";

Result<ModelSpec> read_glm(const weights::HfConfig& config) {
  RUDDER_TRY(const weights::HfConfig whole, with_class_defaults(config, kGlmDefaults));
  RUDDER_TRY(ModelSpec spec, llama_like(whole, {.rope = {.is_partial = true}}));
  whole.has("partial_rotary_factor");  // without effect where the rope says its own
  for (LayerSpec& layer : spec.layers) attention_of(layer)->out_bias = false;
  set_neighbours(spec);
  return spec;
}

Result<ModelSpec> read_glm4(const weights::HfConfig& config) {
  RUDDER_TRY(ModelSpec spec, read_glm(config));
  for (LayerSpec& layer : spec.layers) layer.norms.post = true;
  return spec;
}

WeightNames glm_names() {
  WeightNames names;
  names.of<GatedMlp>().gate_up = {"mlp.gate_up_proj"};
  return names;
}

}  // namespace

Architecture glm() {
  return {"GlmForCausalLM", "glm", read_glm, glm_names(), "", "GlmModel"};
}

Architecture glm4() {
  WeightNames names = glm_names();
  names.mixer_post_norm = "post_self_attn_layernorm";
  names.mlp_post_norm = "post_mlp_layernorm";
  return {"Glm4ForCausalLM", "glm4", read_glm4, names, "", "Glm4Model"};
}

}  // namespace rudder::model
