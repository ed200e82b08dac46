#include "rudder/text/splitters.h"

#include "rudder/base/utf8.h"
#include "rudder/text/unicode.h"

namespace rudder::text {
namespace {

struct Cursor {
  std::string_view text;
  const uint8_t* flags = char_flags();

  // Class of the character at `pos`, and `next` = the position after it. Class 0 at the end.
  uint8_t peek(size_t pos, size_t& next) const {
    next = pos;
    if (pos >= text.size()) return 0;
    return flags[next_char(text, next)];
  }
  // End of the run of characters from `pos` that have a class in `mask`, at most `max` of them.
  size_t run(size_t pos, uint8_t mask, size_t max = static_cast<size_t>(-1)) const {
    size_t next = pos;
    for (size_t n = 0; n < max && pos < text.size() && (peek(pos, next) & mask) != 0; ++n) {
      pos = next;
    }
    return pos;
  }
  // End of the run of characters that are neither letter, number nor space.
  size_t run_other(size_t pos) const {
    size_t next = pos;
    while (pos < text.size() && (peek(pos, next) & (kLetter | kNumber | kSpace)) == 0) pos = next;
    return pos;
  }
};

// \s+(?!\S)|\s+ on the run [pos, end): all of it at the end of the text, else all but its last
// character, unless that is the only one.
size_t space_run(std::string_view text, size_t pos, size_t end) {
  if (end == text.size()) return end;
  size_t last = end;
  previous_char(text, last);
  return last > pos ? last : end;
}

// End of 's 't 're 've 'm 'll 'd at `pos`, or `pos`. Caseless matching takes U+017F for s as well.
template <bool kCaseless>
size_t contraction(std::string_view text, size_t pos) {
  if (text[pos] != '\'') return pos;
  const auto at = [&](size_t i) {
    const char c = i < text.size() ? text[i] : '\0';
    return kCaseless && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  const char a = at(pos + 1), b = at(pos + 2);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return pos + 2;
  if ((a == 'r' || a == 'v') && b == 'e') return pos + 3;
  if (a == 'l' && b == 'l') return pos + 3;
  if (kCaseless && text.substr(pos + 1, 2) == "\xC5\xBF") return pos + 3;
  return pos;
}

size_t split_gpt2(std::string_view text, size_t pos) {
  const Cursor cursor{text};
  if (const size_t end = contraction<false>(text, pos); end != pos) return end;
  size_t next = pos;
  uint8_t flags = cursor.peek(pos, next);
  size_t start = pos;
  if (text[pos] == ' ' && next < text.size()) {  // the optional space belongs to what follows
    size_t after = next;
    const uint8_t following = cursor.peek(next, after);
    if ((following & kSpace) == 0) {
      flags = following;
      start = next;
    }
  }
  if (flags & kLetter) return cursor.run(start, kLetter);
  if (flags & kNumber) return cursor.run(start, kNumber);
  if (flags & kSpace) return space_run(text, pos, cursor.run(pos, kSpace));
  return cursor.run_other(start);
}

template <size_t kDigits>
size_t split_llama3(std::string_view text, size_t pos) {
  const Cursor cursor{text};
  if (const size_t end = contraction<true>(text, pos); end != pos) return end;
  size_t next = pos;
  const uint8_t flags = cursor.peek(pos, next);
  if (flags & kLetter) return cursor.run(next, kLetter);
  if (flags & kNumber) return cursor.run(pos, kNumber, kDigits);
  const bool newline = text[pos] == '\r' || text[pos] == '\n';
  size_t after = next;
  const bool more = next < text.size();
  const uint8_t following = cursor.peek(next, after);
  if (!newline && (following & kLetter)) return cursor.run(after, kLetter);
  if ((flags & kSpace) == 0 ||
      (text[pos] == ' ' && more && (following & (kLetter | kNumber | kSpace)) == 0)) {
    size_t end = cursor.run_other(next);
    while (end < text.size() && (text[end] == '\r' || text[end] == '\n')) ++end;
    return end;
  }
  const size_t end = cursor.run(pos, kSpace);
  const size_t last_newline = text.substr(pos, end - pos).find_last_of("\r\n");
  if (last_newline != std::string_view::npos) return pos + last_newline + 1;
  return space_run(text, pos, end);
}

}  // namespace

Splitter find_splitter(std::string_view pattern) {
  if (pattern == kGpt2Pattern) return split_gpt2;
  if (pattern == kLlama3Pattern) return split_llama3<3>;
  if (pattern == kQwen2Pattern) return split_llama3<1>;
  return nullptr;
}

}  // namespace rudder::text
