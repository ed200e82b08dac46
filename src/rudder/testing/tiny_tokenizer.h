// A byte-level BPE tokenizer of a few dozen tokens, built in code: for tests that need real text
// without a model's files. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "rudder/text/tokenizer.h"

namespace rudder::testing {

inline constexpr int32_t kTinyEos = 0;          // "</s>", special
inline constexpr int32_t kTinyOtherStop = 1;    // "<stop>", special
inline constexpr int32_t kTinyAsciiVocab = 32;  // ids below are special or ASCII text
inline constexpr int32_t kTinyVocab = 37;       // the rest are single bytes of é and €

std::shared_ptr<const text::Tokenizer> tiny_tokenizer();

// The bytes of a token, "" for a special one.
std::string_view tiny_text(int32_t id);

}  // namespace rudder::testing
