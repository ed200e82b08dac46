// Checks, decodes and writes UTF-8. Well formed means Unicode 15, table 3-7: no overlong form, no
// surrogate. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace rudder {

inline constexpr char32_t kReplacementChar = 0xFFFD;

// Offset of the first byte that is not part of a valid UTF-8 character; nothing if all are.
std::optional<size_t> find_invalid_utf8(std::string_view text);

// Decodes the character at `pos` of valid UTF-8 and moves `pos` past it.
inline char32_t next_char(std::string_view text, size_t& pos) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(pos);
  if (lead < 0x80) return text[pos++];
  if (lead < 0xE0) {
    const char32_t c = (lead & 0x1F) << 6 | (byte(pos + 1) & 0x3F);
    pos += 2;
    return c;
  }
  if (lead < 0xF0) {
    const char32_t c = (lead & 0x0F) << 12 | (byte(pos + 1) & 0x3F) << 6 | (byte(pos + 2) & 0x3F);
    pos += 3;
    return c;
  }
  const char32_t c = (lead & 0x07) << 18 | (byte(pos + 1) & 0x3F) << 12 |
                     (byte(pos + 2) & 0x3F) << 6 | (byte(pos + 3) & 0x3F);
  pos += 4;
  return c;
}

// The character that ends just before `pos` (> 0) of valid UTF-8; moves `pos` to its start.
char32_t previous_char(std::string_view text, size_t& pos);

// Bytes of the character whose first byte is `lead`.
inline size_t utf8_length(unsigned char lead) {
  return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

// Appends a code point below 0x110000.
void append_utf8(std::string& out, char32_t c);

// Moves the decodable front of `pending` to `out`, one U+FFFD for each maximal invalid part, and
// leaves the bytes of an unfinished last character. `finish` turns that into U+FFFD as well.
void drain_utf8(std::string& pending, bool finish, std::string& out);

// `bytes` with one U+FFFD for each maximal invalid part, as Unicode recommends and Python decodes.
std::string to_valid_utf8(std::string_view bytes);

// Characters of valid UTF-8.
size_t count_code_points(std::string_view text);

}  // namespace rudder
