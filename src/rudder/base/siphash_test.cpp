#include "rudder/base/siphash.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace rudder {
namespace {

std::array<uint64_t, 2> hash_of(const std::vector<std::byte>& message, size_t cut) {
  std::vector<std::byte> key_bytes;
  for (int i = 0; i < 16; ++i) key_bytes.push_back(std::byte(i));
  std::array<uint64_t, 2> key;
  std::memcpy(key.data(), key_bytes.data(), 16);
  SipHash128 hash(key);
  hash.update(std::span(message).first(cut));
  hash.update(std::span(message).subspan(cut));
  return hash.finish();
}

std::vector<std::byte> count_up(size_t size) {
  std::vector<std::byte> message;
  for (size_t i = 0; i < size; ++i) message.push_back(static_cast<std::byte>(i));
  return message;
}

// The authors' published vectors for key 00..0f and messages of 0 and 1 byte.
TEST(SipHashTest, MatchesThePublishedVectors) {
  const auto bytes = [](const std::array<uint64_t, 2>& words) {
    std::vector<uint8_t> out(16);
    std::memcpy(out.data(), words.data(), 16);
    return out;
  };
  EXPECT_EQ(bytes(hash_of({}, 0)),
            (std::vector<uint8_t>{0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72,
                                  0x14, 0xc7, 0x55, 0x02, 0x93}));
  EXPECT_EQ(bytes(hash_of(count_up(1), 0)),
            (std::vector<uint8_t>{0xda, 0x87, 0xc1, 0xd8, 0x6b, 0x99, 0xaf, 0x44, 0x34, 0x76, 0x59,
                                  0x11, 0x9b, 0x22, 0xfc, 0x45}));
}

TEST(SipHashTest, CutsDoNotMatter) {
  for (size_t size = 0; size < 40; ++size) {
    const auto message = count_up(size);
    const auto whole = hash_of(message, 0);
    for (size_t cut = 0; cut <= size; ++cut) EXPECT_EQ(hash_of(message, cut), whole);
    EXPECT_NE(hash_of(count_up(size + 1), 0), whole);
  }
}

}  // namespace
}  // namespace rudder
