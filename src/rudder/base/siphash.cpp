#include "rudder/base/siphash.h"

#include <bit>
#include <cstring>

namespace rudder {

static_assert(std::endian::native == std::endian::little);

SipHash128::SipHash128(const std::array<uint64_t, 2>& key)
    : v0_(0x736f6d6570736575ULL ^ key[0]),
      v1_(0x646f72616e646f6dULL ^ key[1] ^ 0xee),
      v2_(0x6c7967656e657261ULL ^ key[0]),
      v3_(0x7465646279746573ULL ^ key[1]) {}

void SipHash128::rounds(int count) {
  for (int i = 0; i < count; ++i) {
    v0_ += v1_;
    v1_ = std::rotl(v1_, 13) ^ v0_;
    v0_ = std::rotl(v0_, 32);
    v2_ += v3_;
    v3_ = std::rotl(v3_, 16) ^ v2_;
    v0_ += v3_;
    v3_ = std::rotl(v3_, 21) ^ v0_;
    v2_ += v1_;
    v1_ = std::rotl(v1_, 17) ^ v2_;
    v2_ = std::rotl(v2_, 32);
  }
}

void SipHash128::compress(uint64_t word) {
  v3_ ^= word;
  rounds(2);
  v0_ ^= word;
}

void SipHash128::update(std::span<const std::byte> bytes) {
  size_t i = 0;
  const auto take_byte = [&] {
    pending_ |= static_cast<uint64_t>(bytes[i++]) << (8 * (length_++ % 8));
    if (length_ % 8 == 0) {
      compress(pending_);
      pending_ = 0;
    }
  };
  while (i < bytes.size() && length_ % 8 != 0) take_byte();
  for (; i + 8 <= bytes.size(); i += 8, length_ += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, sizeof(word));
    compress(word);
  }
  while (i < bytes.size()) take_byte();
}

std::array<uint64_t, 2> SipHash128::finish() {
  compress(pending_ | length_ << 56);
  v2_ ^= 0xee;
  rounds(4);
  const uint64_t low = v0_ ^ v1_ ^ v2_ ^ v3_;
  v1_ ^= 0xdd;
  rounds(4);
  return {low, v0_ ^ v1_ ^ v2_ ^ v3_};
}

}  // namespace rudder
