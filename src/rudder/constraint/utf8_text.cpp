#include "rudder/constraint/utf8_text.h"

#include <cstddef>

namespace rudder::constraint {

std::vector<uint32_t> code_points(std::string_view utf8) {
  std::vector<uint32_t> points;
  points.reserve(utf8.size());
  for (size_t i = 0; i < utf8.size();) {
    const auto lead = static_cast<uint8_t>(utf8[i]);
    const size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    uint32_t point = length == 1 ? lead : lead & (0x7Fu >> length);
    for (size_t k = 1; k < length && i + k < utf8.size(); ++k) {
      point = point << 6 | (static_cast<uint8_t>(utf8[i + k]) & 0x3Fu);
    }
    points.push_back(point);
    i += length;
  }
  return points;
}

void append_utf8(std::string& out, uint32_t c) {
  const auto byte = [&](uint32_t value) { out.push_back(static_cast<char>(value)); };
  if (c < 0x80) {
    byte(c);
  } else if (c < 0x800) {
    byte(0xC0 | c >> 6);
    byte(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    byte(0xE0 | c >> 12);
    byte(0x80 | (c >> 6 & 0x3F));
    byte(0x80 | (c & 0x3F));
  } else {
    byte(0xF0 | c >> 18);
    byte(0x80 | (c >> 12 & 0x3F));
    byte(0x80 | (c >> 6 & 0x3F));
    byte(0x80 | (c & 0x3F));
  }
}

}  // namespace rudder::constraint
