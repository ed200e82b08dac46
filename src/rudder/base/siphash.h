// SipHash-2-4 with 128-bit output: a keyed hash for short messages. Without the key nobody can
// compute a hash or find a collision. Source: Aumasson, Bernstein, "SipHash: a fast short-input
// PRF", INDOCRYPT 2012, and the authors' reference for the 128-bit variant. Plain values; any
// thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace rudder {

class SipHash128 {
 public:
  explicit SipHash128(const std::array<uint64_t, 2>& key);

  void update(std::span<const std::byte> bytes);
  void update(uint64_t word) { update(std::as_bytes(std::span(&word, 1))); }  // little-endian
  std::array<uint64_t, 2> finish();                                           // low word first

 private:
  void compress(uint64_t word);
  void rounds(int count);

  uint64_t v0_, v1_, v2_, v3_;
  uint64_t pending_ = 0;  // the last length_ % 8 bytes
  uint64_t length_ = 0;
};

}  // namespace rudder
