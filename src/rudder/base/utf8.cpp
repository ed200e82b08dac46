#include "rudder/base/utf8.h"

#include <algorithm>

namespace rudder {
namespace {

bool is_continuation(unsigned char byte) {
  return (byte & 0xC0) == 0x80;
}

// Bytes of the valid character at `pos`, or 0 with `part` = bytes of the maximal invalid part and
// `cut` = the part is only unfinished.
size_t check_char(std::string_view text, size_t pos, size_t& part, bool& cut) {
  const auto lead = static_cast<unsigned char>(text[pos]);
  part = 1;
  cut = false;
  if (lead < 0x80) return 1;
  size_t length = 0;
  unsigned low = 0x80, high = 0xBF;  // range of the second byte
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return 0;
  }
  for (; part < length; ++part) {
    if (pos + part == text.size()) {
      cut = true;
      return 0;
    }
    const auto byte = static_cast<unsigned char>(text[pos + part]);
    if (part == 1 ? byte < low || byte > high : !is_continuation(byte)) return 0;
  }
  return length;
}

}  // namespace

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  for (size_t pos = 0; pos < text.size();) {
    if (static_cast<unsigned char>(text[pos]) < 0x80) {
      ++pos;
      continue;
    }
    size_t part = 0;
    bool cut = false;
    const size_t length = check_char(text, pos, part, cut);
    if (length == 0) return pos;
    pos += length;
  }
  return std::nullopt;
}

char32_t previous_char(std::string_view text, size_t& pos) {
  do {
    --pos;
  } while (pos > 0 && is_continuation(static_cast<unsigned char>(text[pos])));
  size_t at = pos;
  return next_char(text, at);
}

void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out.push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out.push_back(static_cast<char>(0xC0 | c >> 6));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | c >> 12));
    out.push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out.push_back(static_cast<char>(0xF0 | c >> 18));
    out.push_back(static_cast<char>(0x80 | (c >> 12 & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

void drain_utf8(std::string& pending, bool finish, std::string& out) {
  size_t pos = 0;
  while (pos < pending.size()) {
    size_t part = 0;
    bool cut = false;
    const size_t length = check_char(pending, pos, part, cut);
    if (length > 0) {
      out.append(pending, pos, length);
      pos += length;
    } else if (cut && !finish) {
      break;
    } else {
      append_utf8(out, kReplacementChar);
      pos += part;
    }
  }
  pending.erase(0, pos);
}

std::string to_valid_utf8(std::string_view bytes) {
  std::string pending(bytes);
  std::string out;
  drain_utf8(pending, true, out);
  return out;
}

size_t count_code_points(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char byte) {
    return !is_continuation(static_cast<unsigned char>(byte));
  }));
}

}  // namespace rudder
