// Philox4x32-10 on the device: the numbers of base/philox.h. Included by .cu files only.
// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <cstdint>

namespace rudder::cuda {

__device__ inline uint4 philox4x32(uint64_t key, uint64_t counter) {
  auto k0 = static_cast<uint32_t>(key);
  auto k1 = static_cast<uint32_t>(key >> 32);
  uint4 c = make_uint4(static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c.x;
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c.z;
    c = make_uint4(static_cast<uint32_t>(p1 >> 32) ^ c.y ^ k0, static_cast<uint32_t>(p1),
                   static_cast<uint32_t>(p0 >> 32) ^ c.w ^ k1, static_cast<uint32_t>(p0));
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// Uniform in [0, 1) with 53 bits.
__device__ inline double philox_uniform(uint64_t key, uint64_t counter) {
  const uint4 block = philox4x32(key, counter);
  const uint64_t bits = (uint64_t{block.x} << 32 | block.y) >> 11;
  return static_cast<double>(bits) * 0x1.0p-53;
}

}  // namespace rudder::cuda
