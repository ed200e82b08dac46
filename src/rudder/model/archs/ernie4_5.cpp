// ERNIE 4.5 (dense): Llama's mathematics with a rope of neighbours; one flag says whether products
// have biases.
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

constexpr std::string_view kErnieDefaults = R"({
  "vocab_size": 103424, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 18,
  "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 128, "hidden_act": "silu",
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-5})";

Result<ModelSpec> read_ernie4_5(const weights::HfConfig& config) {
  RUDDER_TRY(const weights::HfConfig whole, with_class_defaults(config, kErnieDefaults));
  RUDDER_TRY(ModelSpec spec, llama_like(whole, {.tied_head = true, .rope = {.theta = 5e5}}));
  RUDDER_TRY(const bool bias, whole.boolean_or("use_bias", false));
  for (LayerSpec& layer : spec.layers) {
    attention_of(layer)->qkv_bias = bias;
    attention_of(layer)->out_bias = bias;
    gated_mlp_of(layer)->bias = bias;
  }
  set_neighbours(spec);
  return spec;
}

}  // namespace

Architecture ernie4_5() {
  return {"Ernie4_5ForCausalLM", "ernie4_5", read_ernie4_5, {}, "", "Ernie4_5Model"};
}

}  // namespace rudder::model
