// ConstraintSpec: what the tokens of a choice are held to, as a plain value that a request carries
// and that could cross a process. The engine makes Constraints of specs before it queues the
// request (engine/forms.h). Any thread.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "rudder/constraint/grammar_spec.h"

namespace rudder::constraint {

// See allow_tokens: no token but these.
struct AllowedTokens {
  std::vector<int32_t> tokens;
};

// See forbid_words: none of these sequences of tokens; none is empty.
struct ForbiddenWords {
  std::vector<std::vector<int32_t>> sequences;
};

// See limit_thinking: so many tokens between the marks, neither of which is empty.
struct ThinkingLimit {
  std::vector<int32_t> begin;
  std::vector<int32_t> end;
  int32_t budget = 0;
  bool open = false;  // the answer begins in the middle of a thought
};

using ConstraintSpec = std::variant<GrammarSpec, AllowedTokens, ForbiddenWords, ThinkingLimit>;

}  // namespace rudder::constraint
