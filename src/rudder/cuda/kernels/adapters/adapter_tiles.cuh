// What shrink and expand share: loads of what uploads write, the multiplication, the group at hand.
// Included by .cu files only.
#pragma once

#include "rudder/cuda/kernels/adapters/adapters.h"
#include "rudder/cuda/kernels/device_vec.cuh"

namespace rudder::cuda {

inline constexpr int kTileTokens = 8;  // of one multiplication
inline constexpr int kGroupTiles = ops::kAdapterGroupTokens / kTileTokens;
inline constexpr int kTileRank = 16;

// c[16 x 8] += a[16 x 16] . b[16 x 8], of bf16. With g = lane / 4 and t = lane % 4 a thread holds
// of a the rows g (a0, a2) and g + 8 (a1, a3), of b the column g, of c rows g (c0, c1) and g + 8
// (c2, c3) of columns 2t and 2t + 1. Which four of the 16 inputs it holds is the caller's to say,
// the same for a and b: here four that lie together.
__device__ inline void adapter_mma(float (&c)[4], uint2 low, uint2 high, uint2 b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(low.x), "r"(high.x), "r"(low.y), "r"(high.y), "r"(b.x), "r"(b.y));
}

// Past L1: read before dependency_wait(), where L1 may hold what an earlier step had there.
__device__ inline ops::AdapterGroup load_group(const AdapterParams& params, int64_t index) {
  const int4 bits = __ldcg(reinterpret_cast<const int4*>(params.groups) + index);
  return {bits.x, bits.y, bits.z, bits.w};
}
__device__ inline float2 load_scale(const AdapterParams& params, int row, int part) {
  return __ldcg(reinterpret_cast<const float2*>(params.scales) + row * params.parts + part);
}
// The group's token at that index; -1: it has none there.
__device__ inline int load_token(const AdapterParams& params, const ops::AdapterGroup& group,
                                 int index) {
  return index < group.count ? __ldcg(params.order + group.begin + index) : -1;
}
// Elements [0, min(8, left)) of a matrix; the rest are zero.
template <bool kAligned>
__device__ inline uint4 load_matrix(const Bf16* from, int64_t left) {
  uint4 bits = make_uint4(0, 0, 0, 0);
  if constexpr (kAligned) {
    if (left > 0) bits = __ldcg(reinterpret_cast<const uint4*>(from));
  } else {
    const Packed run = load_run<false>(from, static_cast<int>(left < 0      ? 0
                                                              : left > kRun ? kRun
                                                                            : left));
    memcpy(&bits, &run, sizeof(bits));
  }
  return bits;
}

}  // namespace rudder::cuda
