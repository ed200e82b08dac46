// OLMo 2: norms after the branches only, RMS norm of q and k over all heads at once.
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

constexpr std::string_view kOlmo2Defaults = R"({
  "vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
  "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048,
  "rms_norm_eps": 1e-5})";

Result<ModelSpec> read_olmo2(const weights::HfConfig& config) {
  RUDDER_TRY(const weights::HfConfig whole, with_class_defaults(config, kOlmo2Defaults));
  RUDDER_TRY(ModelSpec spec, llama_like(whole));
  for (LayerSpec& layer : spec.layers) {
    layer.norms = {.pre = false, .post = true};
  }
  set_qk_norm(spec, QkNorm::kAllHeads);
  return spec;
}

}  // namespace

Architecture olmo2() {
  WeightNames names;
  names.mixer_post_norm = "post_attention_layernorm";
  names.mlp_post_norm = "post_feedforward_layernorm";
  return {"Olmo2ForCausalLM", "olmo2", read_olmo2, names, "", "Olmo2Model"};
}

}  // namespace rudder::model
