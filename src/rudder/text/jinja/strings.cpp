#include "rudder/text/jinja/strings.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

#include "rudder/base/utf8.h"
#include "rudder/text/jinja/special_casing.h"
#include "rudder/text/unicode.h"

namespace rudder::text::jinja {
namespace {

// What has several characters for its capital.
void append_upper(std::string& out, char32_t c) {
  if (const SpecialCasing* special = find_special_casing(c)) {
    out += special->upper;
  } else {
    append_utf8(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
  }
}

void append_title(std::string& out, char32_t c) {
  if (const SpecialCasing* special = find_special_casing(c)) {
    out += special->title;
  } else {
    append_utf8(out, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))));
  }
}

// Passed over where the next cased letter is looked for.
bool is_case_ignorable(char32_t c) {
  switch (category(c)) {
    case Category::kMn:
    case Category::kMe:
    case Category::kCf:
    case Category::kLm:
    case Category::kSk:
      return true;
    default:
      return c == '\'' || c == '.' || c == ':' || c == 0xB7 || c == 0x2019 || c == 0x2018;
  }
}

// A sigma at the end of a word has a small letter of its own.
bool is_final_sigma(std::string_view text, size_t start, size_t end) {
  bool before = false;
  for (size_t pos = start; pos > 0;) {
    const char32_t c = previous_char(text, pos);
    if (is_case_ignorable(c)) continue;
    before = is_cased(c);
    break;
  }
  if (!before) return false;
  for (size_t pos = end; pos < text.size();) {
    const char32_t c = next_char(text, pos);
    if (!is_case_ignorable(c)) return !is_cased(c);
  }
  return true;
}

// The small letter of the character at `start`, which ends at `end`.
void append_lower(std::string& out, std::string_view text, size_t start, size_t end, char32_t c) {
  if (c == 0x3A3 && is_final_sigma(text, start, end)) {
    append_utf8(out, 0x3C2);
  } else {
    append_lowercase(out, c);
  }
}

bool has_char(std::string_view chars, char32_t c) {
  for (size_t pos = 0; pos < chars.size();) {
    if (next_char(chars, pos) == c) return true;
  }
  return false;
}

}  // namespace

bool is_space(char32_t c) {
  return (char_flags()[c] & kSpace) != 0 || (c >= 0x1C && c <= 0x1F);
}

bool is_cased(char32_t c) {
  const Category kind = category(c);
  return kind == Category::kLu || kind == Category::kLl || kind == Category::kLt;
}

std::string to_upper(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) append_upper(out, next_char(text, pos));
  return out;
}

std::string to_lower(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const size_t start = pos;
    const char32_t c = next_char(text, pos);
    append_lower(out, text, start, pos, c);
  }
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const size_t start = pos;
    const char32_t c = next_char(text, pos);
    start == 0 ? append_title(out, c) : append_lower(out, text, start, pos, c);
  }
  return out;
}

std::string title(std::string_view text) {
  std::string out;
  bool in_word = false;
  for (size_t pos = 0; pos < text.size();) {
    const size_t start = pos;
    const char32_t c = next_char(text, pos);
    in_word ? append_lower(out, text, start, pos, c) : append_title(out, c);
    in_word = is_cased(c);
  }
  return out;
}

std::string swapcase(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const size_t start = pos;
    const char32_t c = next_char(text, pos);
    const Category kind = category(c);
    if (kind == Category::kLu) {
      append_lower(out, text, start, pos, c);
    } else if (kind == Category::kLl) {
      append_upper(out, c);
    } else {
      append_utf8(out, c);
    }
  }
  return out;
}

std::string casefold(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = next_char(text, pos);
    utf8proc_int32_t folded[4];
    const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), folded, 4,
                                               UTF8PROC_CASEFOLD, nullptr);
    for (int i = 0; i < count; ++i) append_utf8(out, static_cast<char32_t>(folded[i]));
  }
  return out;
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out.push_back(c);
    }
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

size_t find_text(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
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
    at = find_text(text, from, at);
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
    for (size_t at = find_text(text, *separator); at != std::string_view::npos;
         at = find_text(text, *separator, at + separator->size())) {
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
      const size_t at = find_text(text, *separator, begin);
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
      parts.push_back(text);
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

std::vector<std::string_view> split_back(std::string_view text, const std::string_view* separator,
                                         int64_t limit) {
  std::vector<std::string_view> parts;
  for (; limit != 0; --limit) {
    if (separator == nullptr) {
      text = strip(text, nullptr, false, true);
      size_t begin = text.size();
      while (begin > 0) {
        size_t previous = begin;
        if (is_space(previous_char(text, previous))) break;
        begin = previous;
      }
      if (text.empty()) break;
      parts.push_back(text.substr(begin));
      text = text.substr(0, begin);
      continue;
    }
    const size_t at = text.rfind(*separator);
    if (at == std::string_view::npos) break;
    parts.push_back(text.substr(at + separator->size()));
    text = text.substr(0, at);
  }
  if (separator == nullptr) text = strip(text, nullptr, false, true);
  if (separator != nullptr || !text.empty()) parts.push_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    const size_t end = pos;
    const char32_t c = next_char(text, pos);
    const bool ends = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                      c == 0x2028 || c == 0x2029;
    if (!ends) continue;
    if (c == '\r' && pos < text.size() && text[pos] == '\n') ++pos;
    lines.push_back(text.substr(begin, (keep ? pos : end) - begin));
    begin = pos;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

}  // namespace rudder::text::jinja
