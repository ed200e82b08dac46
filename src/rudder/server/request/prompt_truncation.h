// `truncate_prompt_tokens` and `truncation_side`: cuts a prompt that is too long. Runs on the
// tokenise pool.
#pragma once

#include <cstdint>
#include <optional>

#include "rudder/base/result.h"
#include "rudder/server/request/field_reader.h"
#include "rudder/server/request/text_prompts.h"
#include "rudder/text/tokenizer.h"

namespace rudder::server {

struct Truncation {
  std::optional<int64_t> kept;  // tokens at most; absent: all
  bool keeps_begin = false;     // else the prompt's last ones are kept

  // What a prompt may have before somebody has to look at it: where it is not cut, `room`.
  size_t max_tokens(int64_t room) const;
};

// `room`: tokens that the context has for the prompt; without any nothing is truncated, and
// whatever takes it is at fault.
Result<Truncation> read_truncation(FieldReader& reader, int64_t room);

void truncate(const text::Tokenizer& tokenizer, const Truncation& truncation, PromptText& prompt);

}  // namespace rudder::server
