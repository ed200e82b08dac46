// Checksum: whether bytes are those that were written. Fast (several bytes a cycle) and not against
// an adversary: who may write the bytes may write the checksum. A pure function; any thread.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace rudder {

// Eight lanes of 64-bit words, multiplied and rotated apart so that the processor runs them side by
// side, then mixed with the length. Every bit of the input reaches the result, and a lane's step is
// a bijection: one changed word always changes it.
inline uint64_t checksum(std::span<const std::byte> bytes) {
  constexpr size_t kLanes = 8;
  constexpr uint64_t kPrime = 0x9e3779b97f4a7c15ULL;  // 2^64 over the golden ratio, odd
  std::array<uint64_t, kLanes> lanes = {1, 2, 3, 4, 5, 6, 7, 8};
  const auto step = [](uint64_t lane, uint64_t word) {
    return std::rotl((lane ^ word) * kPrime, 31);
  };
  size_t at = 0;
  for (; at + sizeof(lanes) <= bytes.size(); at += sizeof(lanes)) {
    std::array<uint64_t, kLanes> words;
    std::memcpy(words.data(), bytes.data() + at, sizeof(words));
    for (size_t i = 0; i < kLanes; ++i) lanes[i] = step(lanes[i], words[i]);
  }
  std::array<uint64_t, kLanes> rest = {};
  if (at < bytes.size()) std::memcpy(rest.data(), bytes.data() + at, bytes.size() - at);
  uint64_t sum = bytes.size();
  for (size_t i = 0; i < kLanes; ++i) sum = step(sum, step(lanes[i], rest[i]));
  return (sum ^ (sum >> 29U)) * kPrime;
}

}  // namespace rudder
