// Qwen 2 and 2.5: biases on q, k and v; on request a window in the upper layers.
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

Result<ModelSpec> read_qwen2(const weights::HfConfig& config) {
  RUDDER_TRY(ModelSpec spec, llama_like(config));
  for (LayerSpec& layer : spec.layers) {
    attention_of(layer)->qkv_bias = true;
    attention_of(layer)->out_bias = false;
  }
  RUDDER_TRY_VOID(set_windows_above(config, spec));
  return spec;
}

}  // namespace

Architecture qwen2() {
  return {"Qwen2ForCausalLM", "qwen2", read_qwen2, {}};
}

}  // namespace rudder::model
