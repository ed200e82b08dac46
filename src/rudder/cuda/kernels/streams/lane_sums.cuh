// Several sums over the lanes of a warp at once. Included by .cu files only.
#pragma once

#include <cuda_runtime_api.h>

namespace rudder::cuda {

// Leaves sums of kCount values in v[0 ...) of every lane, fewer and fewer of them while their
// number is even: halves of the lanes go on with halves of the sums. Returns which is the first. A
// sum has the same bits in any number of them: steps have one order, and a + b is b + a.
template <int kCount, int kStep, int kSize>
__device__ __forceinline__ int spread_lane_sums(float (&v)[kSize]) {
  if constexpr (kStep == 0) {
    return 0;
  } else if constexpr (kCount % 2 == 0) {
    constexpr int kHalf = kCount / 2;
    const bool is_upper = (threadIdx.x & kStep) != 0;
#pragma unroll
    for (int j = 0; j < kHalf; ++j) {
      const float kept = is_upper ? v[j + kHalf] : v[j];
      const float given = is_upper ? v[j] : v[j + kHalf];
      v[j] = kept + __shfl_xor_sync(0xffffffffu, given, kStep);
    }
    return (is_upper ? kHalf : 0) + spread_lane_sums<kHalf, kStep / 2>(v);
  } else {
#pragma unroll
    for (int j = 0; j < kCount; ++j) v[j] += __shfl_xor_sync(0xffffffffu, v[j], kStep);
    return spread_lane_sums<kCount, kStep / 2>(v);
  }
}
// How many of them a lane has then.
template <int kCount, int kStep = 16>
inline constexpr int kKeptLaneSums =
    kCount % 2 == 0 ? kKeptLaneSums<kCount / 2, kStep / 2> : kCount;
template <int kCount>
inline constexpr int kKeptLaneSums<kCount, 0> = kCount;

// Sums over the warp's lanes into `to`, [kCount] in shared memory.
template <int kCount>
__device__ __forceinline__ void keep_lane_sums(float (&v)[kCount], float* to) {
  const int first = spread_lane_sums<kCount, 16>(v);
#pragma unroll
  for (int j = 0; j < kKeptLaneSums<kCount>; ++j) to[first + j] = v[j];
}

}  // namespace rudder::cuda
