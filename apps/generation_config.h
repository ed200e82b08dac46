// Reads generation_config.json and the end-of-sequence ids, which checkpoints spread over three
// files. Called once at start.
#pragma once

#include <cstdint>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/server/model.h"
#include "rudder/text/tokenizer.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::apps {

struct GenerationConfig {
  server::SamplingDefaults defaults;
  std::vector<int32_t> eos_ids;  // of generation_config.json, config.json and the tokenizer, sorted
};

// A missing file gives no defaults; a value of the wrong type is an Error that names file and key.
Result<GenerationConfig> read_generation_config(const weights::Checkpoint& checkpoint,
                                                const text::Tokenizer& tokenizer);

}  // namespace rudder::apps
