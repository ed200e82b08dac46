// OLMo 2: norms after the branches only, RMS norm of q and k over all heads at once.
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

Result<ModelSpec> read_olmo2(const weights::HfConfig& config) {
  RUDDER_TRY(ModelSpec spec, llama_like(config));
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
  return {"Olmo2ForCausalLM", "olmo2", read_olmo2, names};
}

}  // namespace rudder::model
