// Phi 3, 3.5 and 4: q, k, v and gate, up are stored stacked; partial rotation, LongRoPE.
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

Result<ModelSpec> read_phi3(const weights::HfConfig& config) {
  RUDDER_TRY(ModelSpec spec, llama_like(config));
  const std::vector<bool> sliding(spec.layers.size(), config.has("sliding_window"));
  RUDDER_TRY_VOID(set_windows(config, sliding, spec));
  return spec;
}

}  // namespace

Architecture phi3() {
  WeightNames names;
  names.of<Attention>().qkv = {"self_attn.qkv_proj"};
  names.of<GatedMlp>().gate_up = {"mlp.gate_up_proj"};
  return {"Phi3ForCausalLM", "phi3", read_phi3, names};
}

}  // namespace rudder::model
