// Finds where the tokens of an encoded text begin in it; used to find the roles of a chat prompt's
// tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/text/tokenizer.h"

namespace rudder::text {

// Byte offsets into `text`, ascending; a token that stands for no bytes of it (a BOS that was put
// in front) begins where the next one does. `ids` = tokenizer.encode(text). Blanks that an encoder
// adds in front of words or drops around added tokens are allowed for; kUnsupported when the tokens
// do not spell the text otherwise (a normalizer that changes characters). Any thread; linear.
Result<std::vector<size_t>> token_begins(const Tokenizer& tokenizer, std::span<const int32_t> ids,
                                         std::string_view text);

}  // namespace rudder::text
