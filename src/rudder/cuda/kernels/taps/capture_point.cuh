// Where the captures of numbers in fp32 or int16 go that a kernel makes beside its rows. Included
// by .cu files only.
#pragma once

#include "rudder/cuda/kernels/device_vec.cuh"
#include "rudder/cuda/kernels/taps/taps.h"
#include "rudder/tap/tap_op.h"

namespace rudder::cuda {

// What a token's captures of a point need.
template <int kPoints>
struct PointTaps {
  const TapParams<kPoints>& taps;
  int64_t token;
  int number;

  __device__ ops::TapEntry entry() const {
    if (taps.point[number] < 0) return {};
    const int64_t at = token * taps.table.num_points + taps.point[number];
    const int4 bits = *reinterpret_cast<const int4*>(taps.batch.entries + at);
    return {bits.x, bits.y, __int_as_float(bits.z), bits.w};
  }
  // Where the row goes, before (0) or behind (1) the point's ops; null: nowhere.
  __device__ Bf16* place(const ops::TapEntry& entry, int after) const {
    if ((entry.flags & ops::TapEntry::kCaptured) == 0) return nullptr;
    const int64_t set = taps.batch.capture_set[token];
    const int64_t point = set * taps.table.num_points + taps.point[number];
    const int offset = taps.table.captures[2 * point + after];
    if (offset < 0) return nullptr;
    const int64_t record = taps.batch.capture_begin[token];
    return static_cast<Bf16*>(taps.table.ring) + (record + offset) * tap::kCaptureAlign;
  }
  // Of a point that no program changes; by one thread, or some of which each has every `step`-th.
  __device__ void keep(const float* row, int count, int first, int step) const {
    const ops::TapEntry found = entry();
#pragma unroll
    for (int after = 0; after < 2; ++after) {
      auto* const to = reinterpret_cast<float*>(place(found, after));
      if (to == nullptr) continue;
      for (int i = first; i < count; i += step) to[i] = row[i];
    }
  }
};

}  // namespace rudder::cuda
