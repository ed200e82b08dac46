// Qwen 3 (dense): RMS norm of each q and k head before the rope.
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

Result<ModelSpec> read_qwen3(const weights::HfConfig& config) {
  RUDDER_TRY(ModelSpec spec, llama_like(config));
  set_qk_norm(spec, QkNorm::kPerHead);
  RUDDER_TRY_VOID(set_windows_above(config, spec));
  return spec;
}

}  // namespace

Architecture qwen3() {
  return {"Qwen3ForCausalLM", "qwen3", read_qwen3, {}};
}

}  // namespace rudder::model
