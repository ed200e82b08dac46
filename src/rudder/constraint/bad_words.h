// BadWords: sequences of tokens that the output must not contain (bad_words). The last token of a
// sequence is forbidden where the output ends with the others; elsewhere it may come. The prompt
// does not count.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/constraint/constraint.h"
#include "rudder/text/tokenizer.h"

namespace rudder::constraint {

// The token sequences that stand for a word: alone, as at the beginning of a line, and behind a
// space, where the vocabulary tells the two apart. kInvalidArgument for a word without a token.
Result<std::vector<std::vector<int32_t>>> spellings_of(std::string_view word,
                                                       const text::Tokenizer& tokenizer);

// No sequence is empty.
std::shared_ptr<const Constraint> forbid_words(std::vector<std::vector<int32_t>> sequences);

}  // namespace rudder::constraint
