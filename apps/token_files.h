// The files of a checkpoint that name tokens, beside its tokenizer.json (rudder/text/side_files.h).
#pragma once

#include <string>
#include <string_view>

#include "rudder/base/result.h"
#include "rudder/text/side_files.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::apps {

// Empty where there is none; one that is there and cannot be read is not passed over.
Result<std::string> optional_text(const weights::Checkpoint& checkpoint, std::string_view file);
Result<text::TokenFiles> read_token_files(const weights::Checkpoint& checkpoint);

}  // namespace rudder::apps
