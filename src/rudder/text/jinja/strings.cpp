#include "rudder/text/jinja/strings.h"

#include <utf8proc.h>

#include "rudder/text/unicode.h"

namespace rudder::text::jinja {
namespace {

bool is_space(char32_t c) {
  return (char_flags()[c] & kSpace) != 0 || (c >= 0x1C && c <= 0x1F);
}
bool is_letter(char32_t c) {
  return (char_flags()[c] & kLetter) != 0;
}

void append_upper(std::string& out, char32_t c) {
  if (c == 0xDF) {
    out += "SS";
  } else {
    append_utf8(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
  }
}

bool has_char(std::string_view chars, char32_t c) {
  for (size_t pos = 0; pos < chars.size();) {
    if (next_char(chars, pos) == c) return true;
  }
  return false;
}

}  // namespace

std::string to_upper(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) append_upper(out, next_char(text, pos));
  return out;
}

std::string to_lower(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) append_lowercase(out, next_char(text, pos));
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const bool first = pos == 0;
    const char32_t c = next_char(text, pos);
    first ? append_upper(out, c) : append_lowercase(out, c);
  }
  return out;
}

std::string title(std::string_view text) {
  std::string out;
  bool in_word = false;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = next_char(text, pos);
    in_word ? append_lowercase(out, c) : append_upper(out, c);
    in_word = is_letter(c);
  }
  return out;
}

std::string_view strip(std::string_view text, const std::string_view* chars, bool left,
                       bool right) {
  const auto goes = [chars](char32_t c) {
    return chars == nullptr ? is_space(c) : has_char(*chars, c);
  };
  size_t begin = 0, end = text.size();
  while (left && begin < end) {
    size_t next = begin;
    if (!goes(next_char(text, next))) break;
    begin = next;
  }
  while (right && end > begin) {
    size_t previous = end;
    if (!goes(previous_char(text, previous))) break;
    end = previous;
  }
  return text.substr(begin, end - begin);
}

std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    int64_t limit) {
  std::string out;
  size_t done = 0;
  for (size_t at = 0; limit != 0; --limit) {
    if (from.empty()) {  // between all characters, and at both ends
      out += to;
      if (at >= text.size()) break;
      const size_t length = utf8_length(static_cast<unsigned char>(text[at]));
      out += text.substr(at, length);
      done = at += length;
      continue;
    }
    at = text.find(from, at);
    if (at == std::string_view::npos) break;
    out += text.substr(done, at - done);
    out += to;
    done = at += from.size();
  }
  out += text.substr(done);
  return out;
}

size_t count_parts(std::string_view text, const std::string_view* separator) {
  size_t count = 1;
  if (separator == nullptr) {
    bool in_part = false;
    for (size_t pos = 0; pos < text.size();) {
      const bool space = is_space(next_char(text, pos));
      count += !space && !in_part;
      in_part = !space;
    }
  } else {
    for (size_t at = text.find(*separator); at != std::string_view::npos;
         at = text.find(*separator, at + separator->size())) {
      ++count;
    }
  }
  return count;
}

std::vector<std::string_view> split(std::string_view text, const std::string_view* separator,
                                    int64_t limit) {
  std::vector<std::string_view> parts;
  if (separator != nullptr) {
    size_t begin = 0;
    for (; limit != 0; --limit) {
      const size_t at = text.find(*separator, begin);
      if (at == std::string_view::npos) break;
      parts.push_back(text.substr(begin, at - begin));
      begin = at + separator->size();
    }
    parts.push_back(text.substr(begin));
    return parts;
  }
  for (;; --limit) {
    text = strip(text, nullptr, true, false);
    if (text.empty()) return parts;
    if (limit == 0) {
      parts.push_back(strip(text, nullptr, false, true));
      return parts;
    }
    size_t end = 0;
    while (end < text.size()) {
      size_t next = end;
      if (is_space(next_char(text, next))) break;
      end = next;
    }
    parts.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

}  // namespace rudder::text::jinja
