// Helium: Llama's mathematics with a rope of neighbours.
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

constexpr std::string_view kHeliumDefaults = R"({
  "vocab_size": 48000, "hidden_size": 2560, "intermediate_size": 7040, "num_hidden_layers": 24,
  "num_attention_heads": 20, "num_key_value_heads": 20, "head_dim": 128, "hidden_act": "silu",
  "max_position_embeddings": 4096, "rms_norm_eps": 1e-8})";

Result<ModelSpec> read_helium(const weights::HfConfig& config) {
  RUDDER_TRY(const weights::HfConfig whole, with_class_defaults(config, kHeliumDefaults));
  RUDDER_TRY(ModelSpec spec, llama_like(whole, {.rope = {.theta = 1e5}}));
  for (LayerSpec& layer : spec.layers) attention_of(layer)->out_bias = false;
  set_neighbours(spec);
  return spec;
}

}  // namespace

Architecture helium() {
  return {"HeliumForCausalLM", "helium", read_helium, {}, "", "HeliumModel"};
}

}  // namespace rudder::model
