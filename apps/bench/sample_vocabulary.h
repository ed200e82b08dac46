// A generated vocabulary for measuring grammars: like a byte-level BPE of 128,000 tokens, made by
// rule, so that figures can be repeated without a model's files.
#pragma once

#include <cstdint>

#include "rudder/constraint/form_engine.h"

namespace rudder::apps {

// `size` tokens, the last of which is the stop token. In this order until there are enough: the
// bytes; numbers of up to three digits; runs of spaces, tabs and line breaks; ASCII punctuation of
// one to three signs, also behind a space and before a line break (about 1,900 tokens have a
// quote); pieces of UTF-8; then words of syllables in turn: behind a space, bare, with a capital,
// in capitals, behind a sign (`"word`, `.word`), Cyrillic, accented Latin and Chinese ones.
constraint::Vocabulary sample_vocabulary(int32_t size);

}  // namespace rudder::apps
