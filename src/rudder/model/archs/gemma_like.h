// What Gemma 2 and 3 share: see gemma2.cpp. Load time, one thread.
#pragma once

#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {

// llama_like plus the sandwich norms, the scales and the soft-caps; windows are the caller's.
Result<ModelSpec> gemma_like(const weights::HfConfig& config, const LlamaDefaults& defaults);
WeightNames gemma_names();

}  // namespace rudder::model
