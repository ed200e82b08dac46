// Gemma 2: norms before and after each branch, soft-caps on attention and logits, a window in every
// other layer, embeddings times sqrt(hidden), norm weights stored as w of 1 + w.
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/gemma_like.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

constexpr std::string_view kGemma2Defaults = R"({
  "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
  "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
  "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6,
  "max_position_embeddings": 8192, "query_pre_attn_scalar": 256, "sliding_window": 4096,
  "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0})";

Result<ModelSpec> read_gemma2(const weights::HfConfig& config) {
  RUDDER_TRY(const weights::HfConfig whole, with_class_defaults(config, kGemma2Defaults));
  RUDDER_TRY(ModelSpec spec, gemma_like(whole, {.tied_head = true,
                                                .activation_key = "hidden_activation",
                                                .activation = "gelu_pytorch_tanh"}));
  const auto every_other = [](size_t layer, int64_t) { return layer % 2 == 0; };
  RUDDER_TRY(const auto sliding, sliding_layers(whole, spec.layers.size(), every_other, 0));
  RUDDER_TRY_VOID(set_windows(whole, sliding, spec));
  return spec;
}

}  // namespace

Architecture gemma2() {
  return {"Gemma2ForCausalLM", "gemma2", read_gemma2, gemma_names(), "", "Gemma2Model"};
}

}  // namespace rudder::model
