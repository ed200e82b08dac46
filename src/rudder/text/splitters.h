// Hand-written equivalents of the three regexes that most byte-level tokenizers split with; several
// times faster than any regex engine. A pattern is replaced only if it is one of these to the byte;
// splitters_test and the differential test hold them equal to the regex. Used by PreTokenizer.
#pragma once

#include <cstddef>
#include <string_view>

namespace rudder::text {

// End of the pre-token that begins at `pos` < text.size(). `text` is valid UTF-8, and every
// position of it belongs to some pre-token.
using Splitter = size_t (*)(std::string_view text, size_t pos);

inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// The splitter of `pattern`, or null if it is none of the three.
Splitter find_splitter(std::string_view pattern);

}  // namespace rudder::text
