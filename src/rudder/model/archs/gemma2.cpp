// Gemma 2: norms before and after each branch, soft-caps on attention and logits, a window in every
// other layer, embeddings times sqrt(hidden), norm weights stored as w of 1 + w.
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/gemma_like.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

Result<ModelSpec> read_gemma2(const weights::HfConfig& config) {
  RUDDER_TRY(ModelSpec spec, gemma_like(config, {.tied_head = true,
                                                 .activation_key = "hidden_activation",
                                                 .activation = "gelu_pytorch_tanh"}));
  const auto every_other = [](size_t layer, int64_t) { return layer % 2 == 0; };
  RUDDER_TRY(const auto sliding, sliding_layers(config, spec.layers.size(), every_other, 0));
  RUDDER_TRY_VOID(set_windows(config, sliding, spec));
  return spec;
}

}  // namespace

Architecture gemma2() {
  return {"Gemma2ForCausalLM", "gemma2", read_gemma2, gemma_names()};
}

}  // namespace rudder::model
