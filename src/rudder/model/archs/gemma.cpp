// Gemma: Llama's mathematics with embeddings times sqrt(hidden), GeGLU, a tied head, and norm
// weights stored as w of 1 + w.
#include <cmath>

#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

using weights::HfConfig;

constexpr std::string_view kGemmaDefaults = R"({
  "vocab_size": 256000, "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28,
  "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256,
  "hidden_act": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6, "max_position_embeddings": 8192})";

Result<ModelSpec> read_gemma(const HfConfig& config) {
  RUDDER_TRY(const HfConfig whole, with_class_defaults(config, kGemmaDefaults));
  RUDDER_TRY(ModelSpec spec, llama_like(whole, {.tied_head = true}));
  spec.embed_scale = std::sqrt(static_cast<float>(spec.hidden));
  for (LayerSpec& layer : spec.layers) gated_mlp_of(layer)->bias = false;
  return spec;
}

}  // namespace

Architecture gemma() {
  WeightNames names;
  names.norm_offset = 1;
  return {"GemmaForCausalLM", "gemma", read_gemma, names, "", "GemmaModel"};
}

}  // namespace rudder::model
