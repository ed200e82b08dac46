// Seed-OSS: Llama's mathematics; q, k and v have biases, and the output projection has a flag of
// its own.
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

constexpr std::string_view kSeedOssDefaults = R"({
  "vocab_size": 155136, "hidden_size": 4096, "intermediate_size": 27648, "num_hidden_layers": 64,
  "num_attention_heads": 80, "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu",
  "max_position_embeddings": 524288, "rms_norm_eps": 1e-6, "attention_bias": true})";

Result<ModelSpec> read_seed_oss(const weights::HfConfig& config) {
  RUDDER_TRY(const weights::HfConfig whole, with_class_defaults(config, kSeedOssDefaults));
  RUDDER_TRY(ModelSpec spec, llama_like(whole));
  RUDDER_TRY(const bool out_bias, whole.boolean_or("attention_out_bias", false));
  for (LayerSpec& layer : spec.layers) attention_of(layer)->out_bias = out_bias;
  return spec;
}

}  // namespace

Architecture seed_oss() {
  return {"SeedOssForCausalLM", "seed_oss", read_seed_oss, {}, "", "SeedOssModel"};
}

}  // namespace rudder::model
