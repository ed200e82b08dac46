#include "rudder/steer/base64.h"

#include <array>
#include <cstdint>
#include <cstring>

#include "rudder/base/check.h"

namespace rudder::steer {
namespace {

constexpr std::string_view kAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr uint32_t kInvalid = 0xff000000;  // over the 24 bits of four characters

// For each place in a group of four, what a character adds to the group's bytes, as a little-endian
// word: a group is four loads and three ors, and validity comes along in the highest byte.
using Table = std::array<uint32_t, 256>;

constexpr std::array<Table, 4> make_tables() {
  std::array<Table, 4> tables = {};
  for (Table& table : tables) table.fill(kInvalid);
  for (uint32_t value = 0; value < 64; ++value) {
    const auto character = static_cast<uint8_t>(kAlphabet[value]);
    for (size_t place = 0; place < 4; ++place) {
      const uint32_t bits = value << (18 - 6 * place);  // of the group's 24, the first byte on top
      tables[place][character] = (bits >> 16 & 0xff) | (bits & 0xff00) | (bits & 0xff) << 16;
    }
  }
  return tables;
}
constexpr std::array<Table, 4> kTables = make_tables();

inline uint32_t decode_group(const char* text) {
  return kTables[0][static_cast<uint8_t>(text[0])] | kTables[1][static_cast<uint8_t>(text[1])] |
         kTables[2][static_cast<uint8_t>(text[2])] | kTables[3][static_cast<uint8_t>(text[3])];
}

size_t padding_of(std::string_view text) {
  if (!text.ends_with('=')) return 0;
  return text.ends_with("==") ? 2 : 1;
}

}  // namespace

std::optional<size_t> base64_bytes(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  return text.size() / 4 * 3 - padding_of(text);
}

bool decode_base64(std::string_view text, std::span<std::byte> out) {
  RUDDER_CHECK(base64_bytes(text) == out.size(), "{} characters into {} bytes", text.size(),
               out.size());
  if (text.empty()) return true;
  const char* in = text.data();
  std::byte* to = out.data();
  uint32_t seen = 0;
  // All groups but the last: each writes a fourth byte that the next one overwrites.
  for (size_t groups = text.size() / 4 - 1; groups > 0; --groups, in += 4, to += 3) {
    const uint32_t group = decode_group(in);
    seen |= group;
    std::memcpy(to, &group, sizeof(group));
  }
  std::array<char, 4> last = {in[0], in[1], in[2], in[3]};
  const size_t padding = padding_of(text);
  for (size_t i = 4 - padding; i < 4; ++i) last[i] = 'A';  // zero bits
  const uint32_t group = decode_group(last.data());
  seen |= group;
  std::memcpy(to, &group, 3 - padding);
  const uint32_t spare = padding == 0 ? 0 : group >> (8 * (3 - padding)) & 0xffffff;
  return (seen & kInvalid) == 0 && spare == 0;
}

}  // namespace rudder::steer
