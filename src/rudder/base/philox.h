// Philox4x32-10, a counter-based random generator: the same (key, counter) gives the same numbers
// on every backend, so a request's draws do not depend on its batch.
// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cstdint>

namespace rudder {

using PhiloxBlock = std::array<uint32_t, 4>;

constexpr PhiloxBlock philox4x32(uint64_t key, uint64_t counter_low, uint64_t counter_high = 0) {
  uint32_t k0 = static_cast<uint32_t>(key);
  uint32_t k1 = static_cast<uint32_t>(key >> 32);
  PhiloxBlock c = {static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32),
                   static_cast<uint32_t>(counter_high), static_cast<uint32_t>(counter_high >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}

constexpr uint64_t philox_u64(uint64_t key, uint64_t counter_low, uint64_t counter_high = 0) {
  const PhiloxBlock block = philox4x32(key, counter_low, counter_high);
  return uint64_t{block[0]} << 32 | block[1];
}

// Uniform in [0, 1) with 53 bits.
constexpr double philox_uniform(uint64_t key, uint64_t counter_low, uint64_t counter_high = 0) {
  return static_cast<double>(philox_u64(key, counter_low, counter_high) >> 11) * 0x1.0p-53;
}

}  // namespace rudder
