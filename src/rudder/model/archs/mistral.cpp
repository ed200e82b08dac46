// Mistral 7B and Nemo: a sliding window in every layer, or none.
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

Result<ModelSpec> read_mistral(const weights::HfConfig& config) {
  RUDDER_TRY(ModelSpec spec, llama_like(config));
  const std::vector<bool> sliding(spec.layers.size(), config.has("sliding_window"));
  RUDDER_TRY_VOID(set_windows(config, sliding, spec));
  return spec;
}

}  // namespace

Architecture mistral() {
  return {"MistralForCausalLM", "mistral", read_mistral, {}};
}

}  // namespace rudder::model
