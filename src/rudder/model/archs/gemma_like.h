// What the Gemmas share: see gemma2.cpp. Load time, one thread.
#pragma once

#include <string_view>

#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {

// The soft-cap of that key; one that is absent or null is off.
Result<float> soft_cap(const weights::HfConfig& config, std::string_view key);

// Of Gemma 2 and 3: llama_like plus the sandwich norms, the scales and the soft-caps; windows are
// the caller's.
Result<ModelSpec> gemma_like(const weights::HfConfig& config, const LlamaDefaults& defaults);
WeightNames gemma_names();

}  // namespace rudder::model
