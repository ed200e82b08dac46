#include "rudder/steer/capture/base64.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace rudder::steer::capture {
namespace {

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

using Pair = std::array<char, 2>;

// Two digits for each number of 12 bits.
constexpr std::array<Pair, 4096> kPairs = [] {
  std::array<Pair, 4096> pairs = {};
  for (size_t i = 0; i < pairs.size(); ++i) pairs[i] = {kDigits[i >> 6u], kDigits[i & 63u]};
  return pairs;
}();

// The four digits of 24 bits.
void put_group(char* to, uint32_t group) {
  std::memcpy(to, kPairs[group >> 12u].data(), 2);
  std::memcpy(to + 2, kPairs[group & 4095u].data(), 2);
}

}  // namespace

void append_base64(std::string& out, std::span<const std::byte> bytes) {
  const size_t begin = out.size();
  out.resize(begin + (bytes.size() + 2) / 3 * 4);
  char* to = out.data() + begin;
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(bytes[i]); };
  size_t i = 0;
  for (; i + 3 <= bytes.size(); i += 3, to += 4) {
    put_group(to, byte(i) << 16 | byte(i + 1) << 8 | byte(i + 2));
  }
  const size_t left = bytes.size() - i;
  if (left == 0) return;
  put_group(to, byte(i) << 16 | (left == 2 ? byte(i + 1) << 8 : 0));
  to[3] = '=';
  if (left == 1) to[2] = '=';
}

}  // namespace rudder::steer::capture
