#include "rudder/steer/capture/base64.h"

#include <cstdint>
#include <string_view>

namespace rudder::steer::capture {
namespace {

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

char digit(uint32_t group, int index) {
  return kDigits[(group >> static_cast<unsigned>(18 - 6 * index)) & 63u];
}

}  // namespace

void append_base64(std::string& out, std::span<const std::byte> bytes) {
  const size_t begin = out.size();
  out.resize(begin + (bytes.size() + 2) / 3 * 4);
  char* to = out.data() + begin;
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(bytes[i]); };
  size_t i = 0;
  for (; i + 3 <= bytes.size(); i += 3) {
    const uint32_t group = byte(i) << 16 | byte(i + 1) << 8 | byte(i + 2);
    for (int k = 0; k < 4; ++k) *to++ = digit(group, k);
  }
  const size_t left = bytes.size() - i;
  if (left == 0) return;
  const uint32_t group = byte(i) << 16 | (left == 2 ? byte(i + 1) << 8 : 0);
  *to++ = digit(group, 0);
  *to++ = digit(group, 1);
  *to++ = left == 2 ? digit(group, 2) : '=';
  *to++ = '=';
}

}  // namespace rudder::steer::capture
