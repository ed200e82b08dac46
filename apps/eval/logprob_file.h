// Files of a scored text: what a run of one model leaves for runs of others to be compared with
// (`rudder eval perplexity --save-logprobs`, `rudder eval kl --reference`). The format is in
// docs/eval.md. Main thread.
#pragma once

#include <string>

#include "eval/scored_text.h"
#include "rudder/base/result.h"

namespace rudder::apps {

// A safetensors file of version kLogprobFileVersion.
Result<void> write_logprobs(const ScoredText& text, const std::string& path);

// Checks every field. kCorruptFile with the file and the field: it is no such file, or what it says
// cannot be; kUnsupported: another version.
Result<ScoredText> read_logprobs(const std::string& path);

inline constexpr const char* kLogprobFileFormat = "rudder.logprobs";
inline constexpr int32_t kLogprobFileVersion = 1;

}  // namespace rudder::apps
