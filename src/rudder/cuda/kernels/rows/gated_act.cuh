// What the gated activation's kernels share: a run of it, the largest magnitude of a row that the
// registers of a cluster hold, the shapes of clusters. Included by .cu files only.
#pragma once

#include "rudder/cuda/kernels/device_barrier.cuh"
#include "rudder/cuda/kernels/products/product_scales.cuh"
#include "rudder/cuda/kernels/rows/rows.h"

namespace rudder::cuda {

inline constexpr int kMaxCluster = 8;
inline constexpr int kMaxGatedThreads = 512;
static_assert(int64_t{kMaxCluster} * kMaxGatedThreads * kRun >= kMaxQuantisedWidth);

// Clusters that have a row each, a run a thread, and go on to further rows.
struct GatedGrid {
  unsigned cluster;   // blocks
  unsigned threads;   // of a block
  unsigned clusters;  // rows at a time
};
// blocks_per_sm(threads of a block): how many are on a multiprocessor at once.
template <typename BlocksPerSm>
GatedGrid gated_grid(const GatedActParams& p, BlocksPerSm blocks_per_sm) {
  constexpr int kWishedThreads = 256;
  const int64_t runs = (p.width + kRun - 1) / kRun;
  int64_t cluster = 2;  // at least: a launch without clusters has no st.async
  while (cluster < kMaxCluster && cluster * kWishedThreads < runs) cluster *= 2;
  const int64_t threads = (runs + cluster * 32 - 1) / (cluster * 32) * 32;
  // As many rows for each cluster, as far as that goes, and no cluster behind another. A cluster
  // lies in one group of multiprocessors, which leaves some of the 132 without a full share of
  // blocks.
  constexpr int64_t kSms = 120;
  const int64_t most = kSms * blocks_per_sm(threads) / cluster;
  const int64_t rows_each = (p.rows + most - 1) / most;
  const int64_t clusters = (p.rows + rows_each - 1) / rows_each;
  return {static_cast<unsigned>(cluster), static_cast<unsigned>(threads),
          static_cast<unsigned>(clusters)};
}

// x / (1 + 2^y), without the instructions that are for numbers which the sum with 1 does not see.
__device__ inline float over_one_and_power(float x, float y) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(y));
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + power));
  return x * inverse;
}

template <ops::Activation kActivation>
__device__ float activate(float x) {
  constexpr float kLog2E = 1.4426950408889634f;
  if constexpr (kActivation == ops::Activation::kSilu) {
    return over_one_and_power(x, -kLog2E * x);
  } else if constexpr (kActivation == ops::Activation::kGeluTanh) {
    // 0.5 x (1 + tanh(u)) = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
    const float u = x * fmaf(x * x, 0.044715f, 1.0f);
    return over_one_and_power(x, kLog2E * (-1.5957691216f * u));
  } else if constexpr (kActivation == ops::Activation::kGelu) {
    return 0.5f * x * erfcf(-0.70710678f * x);
  } else {
    static_assert(kActivation == ops::Activation::kRelu);
    return x < 0.0f ? 0.0f : x;
  }
}
// Comparisons with what is no number are false, and leave it.
__device__ inline float clamped_swiglu(float gate, float up) {
  constexpr float kLog2E = 1.4426950408889634f;
  const float g = gate > ops::kSwigluLimit ? ops::kSwigluLimit : gate;
  float u = up > ops::kSwigluLimit ? ops::kSwigluLimit : up;
  u = u < -ops::kSwigluLimit ? -ops::kSwigluLimit : u;
  return (u + 1.0f) * over_one_and_power(g, -kLog2E * ops::kSwigluSlope * g);
}
__device__ inline float limited_silu(float gate, float up) {
  const float g = gate > ops::kSiluLimit ? ops::kSiluLimit : gate;
  float u = up > ops::kSiluLimit ? ops::kSiluLimit : up;
  u = u < -ops::kSiluLimit ? -ops::kSiluLimit : u;
  return activate<ops::Activation::kSilu>(g) * u;
}
// gate = act(gate) * up. kErf: also kGelu, which takes more registers than the rest together.
template <ops::Activation kActivation>
__device__ void activate_run(Floats& gate, const Floats& up) {
#pragma unroll
  for (int j = 0; j < kRun; ++j) {
    if constexpr (kActivation == ops::Activation::kClampedSwiglu) {
      gate.v[j] = clamped_swiglu(gate.v[j], up.v[j]);
    } else if constexpr (kActivation == ops::Activation::kLimitedSilu) {
      gate.v[j] = limited_silu(gate.v[j], up.v[j]);
    } else {
      gate.v[j] = activate<kActivation>(gate.v[j]) * up.v[j];
    }
  }
}
template <bool kErf>
__device__ void activate_run(Floats& gate, const Floats& up, ops::Activation activation) {
  switch (activation) {
    case ops::Activation::kSilu:
      return activate_run<ops::Activation::kSilu>(gate, up);
    case ops::Activation::kGeluTanh:
      return activate_run<ops::Activation::kGeluTanh>(gate, up);
    case ops::Activation::kGelu:
      if constexpr (kErf) activate_run<ops::Activation::kGelu>(gate, up);
      return;
    case ops::Activation::kRelu:
      return activate_run<ops::Activation::kRelu>(gate, up);
    case ops::Activation::kClampedSwiglu:
      return activate_run<ops::Activation::kClampedSwiglu>(gate, up);
    case ops::Activation::kLimitedSilu:
      return activate_run<ops::Activation::kLimitedSilu>(gate, up);
  }
}

// What a thread has of a row, as it is stored: zeros past the end.
struct GatedRun {
  Packed gate;
  Packed up;
  float scale = 1.0f;  // of the row
};

template <bool kAligned>
__device__ GatedRun load_gated(const GatedActParams& p, int64_t row, int i) {
  const Bf16* from = static_cast<const Bf16*>(p.x) + row * 2 * p.width + i;
  const int left = static_cast<int>(p.width) - i;
  GatedRun run;
  run.gate = load_run<kAligned>(from, left);
  run.up = load_run<kAligned>(from + p.width, left);
  if (p.x_scales.row != nullptr) run.scale = p.x_scales.row[row];
  return run;
}

// Of the columns of a run.
struct GatedScales {
  Floats gate;
  Floats up;
};

template <bool kScaled>
__device__ Floats gated(const GatedRun& run, const GatedScales& scales,
                        ops::Activation activation) {
  Floats gate = unpack(run.gate);
  Floats up = unpack(run.up);
  if constexpr (kScaled) {
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      gate.v[j] *= run.scale * scales.gate.v[j];
      up.v[j] *= run.scale * scales.up.v[j];
    }
  }
  activate_run<!kScaled>(gate, up, activation);
  return gate;
}

// What the blocks of a cluster tell each other, for two rows in turn: who writes a address again
// has heard of the row in between from all others, who have read it before they told.
struct HighestShared {
  uint32_t of_warp[kMaxGatedThreads / 32];  // bits of floats
  float of_block[2][kMaxCluster];           // zeros past the cluster's size
  uint64_t told[2];
};

__device__ inline void init_highest(HighestShared& shared) {
  if (threadIdx.x < 2 * kMaxCluster) {
    shared.of_block[threadIdx.x / kMaxCluster][threadIdx.x % kMaxCluster] = 0.0f;
  }
  if (threadIdx.x == 0) {
    for (uint64_t& barrier : shared.told) barrier_init(shared_address(&barrier), 1);
    barrier_init_fence();
  }
  __syncthreads();
}

// Tells the cluster the largest magnitude that this block has of its n-th row.
__device__ inline void tell_highest(const Floats& y, unsigned n, HighestShared& shared) {
  const unsigned lane = threadIdx.x % 32;
  float highest = 0.0f;
#pragma unroll
  for (const float v : y.v) highest = fmaxf(highest, fabsf(v));  // a NaN is passed over
  // Floats that are not negative have the order of their bits.
  const uint32_t of_warp = __reduce_max_sync(0xffffffffu, __float_as_uint(highest));
  if (lane == 0) shared.of_warp[threadIdx.x / 32] = of_warp;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const uint32_t told = shared_address(&shared.told[n % 2]);
  const uint32_t ranks = cluster_size();
  if (lane == 0) barrier_expect(told, ranks * sizeof(float));
  const uint32_t of_block =
      __reduce_max_sync(0xffffffffu, lane < blockDim.x / 32 ? shared.of_warp[lane] : 0u);
  const uint32_t address = shared_address(&shared.of_block[n % 2][cluster_rank()]);
  if (lane < ranks) {
    store_to_rank(shared_of_rank(address, lane), __uint_as_float(of_block),
                  shared_of_rank(told, lane));
  }
}

// The largest of the n-th row, once all blocks have told.
__device__ inline float hear_highest(unsigned n, HighestShared& shared) {
  barrier_wait(shared_address(&shared.told[n % 2]), n / 2 % 2);
  float highest = 0.0f;
#pragma unroll
  for (const float one : shared.of_block[n % 2]) highest = fmaxf(highest, one);
  return highest;
}

// The rows of a cluster in fp8, each `stride`-th from `row` on, at a thread's column i.
// work_out(row) is a row as it leaves, and asks for the one behind it. A row is worked out while
// the blocks tell each other of the one before.
template <bool kAligned, typename WorkOut>
__device__ void store_gated_fp8(const GatedActParams& p, unsigned row, unsigned stride, int i,
                                HighestShared& shared, WorkOut work_out) {
  const auto rows = static_cast<unsigned>(p.rows);
  Floats y = work_out(row);
  tell_highest(y, 0, shared);
  for (unsigned n = 0; row < rows; ++n) {
    const unsigned next = row + stride;
    Floats next_y = {};
    if (next < rows) next_y = work_out(next);
    const Fp8RowScale scale(hear_highest(n, shared));
    if (next < rows) tell_highest(next_y, n + 1, shared);
    if (i == 0) p.out_scale[row] = scale.value();
    store_run_fp8<kAligned>(static_cast<uint8_t*>(p.out) + int64_t{row} * p.width + i,
                            static_cast<int>(p.width) - i, scale.stored(y));
    y = next_y;
    row = next;
  }
}

}  // namespace rudder::cuda
