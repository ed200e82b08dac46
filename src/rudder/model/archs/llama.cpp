// Llama 2, 3, 3.1, 3.2 and the many models of their shape.
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {

Architecture llama() {
  return {"LlamaForCausalLM",
          "llama",
          [](const weights::HfConfig& config) { return llama_like(config); },
          {}};
}

}  // namespace rudder::model
