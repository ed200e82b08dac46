// Reads generation_config.json and the end-of-sequence ids, which checkpoints spread over three
// files. Called once at start.
#pragma once

#include <cstdint>
#include <string>
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

// Where defaults of requests come from.
struct GenerationSource {
  std::string from = "auto";  // "auto": the model's file; "vllm": none; else a folder
  std::string overrides;      // a JSON object of keys that hold in place of the file's
};

// A missing file gives no defaults, but a folder that is named must have one. A value that a
// request could not have is an Error that names file and key, and so is an override that sets
// nothing. Ends of sequence are the model's in any case, and those of a folder besides.
Result<GenerationConfig> read_generation_config(const weights::Checkpoint& checkpoint,
                                                const text::Tokenizer& tokenizer,
                                                const GenerationSource& source);

}  // namespace rudder::apps
