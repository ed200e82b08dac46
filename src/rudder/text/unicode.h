// Character classes as the reference tokenizer sees them. Used across the room.
// Constants and pure functions: safe from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "rudder/text/unicode_tables.h"

namespace rudder::text {

enum CharFlag : uint8_t {
  kLetter = 1,       // \p{L}
  kMark = 2,         // combining marks of the reference's normaliser
  kNumber = 4,       // \p{N}
  kSpace = 8,        // White_Space
  kPunctuation = 16  // the Punctuation pre-tokenizer's class
};

// One byte of CharFlags for each code point below 0x110000.
const uint8_t* char_flags();

Category category(char32_t c);
// The `\w` of added tokens and of the Whitespace pre-tokenizer.
bool is_word_char(char32_t c);
// The class of the Digits pre-tokenizer.
bool is_numeric(char32_t c);
bool in_ranges(std::span<const CodePointRange> ranges, char32_t c);

// GPT-2's printable stand-in for each byte: byte_char(0x20) is U+0120.
char32_t byte_char(uint8_t byte);
std::optional<uint8_t> char_byte(char32_t c);

// The full lower-case mapping, without context (no final sigma).
void append_lowercase(std::string& out, char32_t c);

}  // namespace rudder::text
