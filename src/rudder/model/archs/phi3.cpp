// Phi 3, 3.5 and 4: q, k, v and gate, up are stored stacked; partial rotation, LongRoPE.
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

// The original length goes before one inside the rope's object.
constexpr std::string_view kPhi3Defaults = R"({
  "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
  "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 4096,
  "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5})";

Result<ModelSpec> read_phi3(const weights::HfConfig& config) {
  RUDDER_TRY(const weights::HfConfig whole, with_class_defaults(config, kPhi3Defaults));
  RUDDER_TRY(ModelSpec spec, llama_like(whole, {.rope = {.is_partial = true, .is_long = true}}));
  const std::vector<bool> sliding(spec.layers.size(), whole.has("sliding_window"));
  RUDDER_TRY_VOID(set_windows(whole, sliding, spec));
  return spec;
}

}  // namespace

Architecture phi3() {
  WeightNames names;
  names.of<Attention>().qkv = {"self_attn.qkv_proj"};
  names.of<GatedMlp>().gate_up = {"mlp.gate_up_proj"};
  return {"Phi3ForCausalLM", "phi3", read_phi3, names, "", "Phi3Model"};
}

}  // namespace rudder::model
