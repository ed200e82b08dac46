// The norm of a row in shared memory, by a block. A thread does the work of two of residual_norm's
// (kernels/rows/rows.cu), which are called virtual here: the row has the bits that it has there.
// Included by .cu files only.
#pragma once

#include "rudder/cuda/kernels/device_barrier.cuh"
#include "rudder/cuda/kernels/rows/row_block.cuh"
#include "rudder/cuda/kernels/streams/streams.h"

namespace rudder::cuda {

inline constexpr int kNormTurns = 2;  // virtual threads of one
// residual_norm has so many, with a run each.
constexpr int64_t most_normed_width(int threads) {
  return int64_t{kNormTurns} * threads * kRun;
}

// The runs of a normed row as it is stored, row `row` of what is written.
template <int kThreads>
__device__ inline void store_normed(const StreamNormParams& n, Floats (&x)[kNormTurns], int width,
                                    int64_t row, float* scratch) {
  const auto column = [](int turn) {
    return (turn * kThreads + static_cast<int>(threadIdx.x)) * kRun;
  };
  if (n.out_scale == nullptr) {
#pragma unroll
    for (int h = 0; h < kNormTurns; ++h) {
      const int i = column(h);
      store_run<true>(static_cast<Bf16*>(n.out) + row * width + i, width - i, pack(x[h]));
    }
    return;
  }
  if (n.rounds) {
#pragma unroll
    for (Floats& run : x) run = rounded(run);
  }
  const Fp8RowScale scale(block_max(highest_of(x), scratch));
  if (threadIdx.x == 0) n.out_scale[row] = scale.value();
#pragma unroll
  for (int h = 0; h < kNormTurns; ++h) {
    const int i = column(h);
    store_run_fp8<true>(static_cast<uint8_t*>(n.out) + row * width + i, width - i,
                        scale.stored(x[h]));
  }
}

// By all threads. `from` has the row when the first phase of `barrier` is over.
template <int kThreads>
__device__ inline void norm_row(const StreamNormParams& n, const Bf16* from, int width, int64_t row,
                                const uint64_t& barrier, float (&of_warp)[2][32]) {
  constexpr int kWarps = kThreads / 32;
  static_assert(kNormTurns * kWarps <= 32);
  const auto thread = static_cast<int>(threadIdx.x);
  Floats weight[kNormTurns];
  Floats x[kNormTurns];
#pragma unroll
  for (int h = 0; h < kNormTurns; ++h) {
    const int i = (h * kThreads + thread) * kRun;
    weight[h] = load_floats<true>(n.weight + i, width - i);
  }
  barrier_wait(shared_address(&barrier), 0);
#pragma unroll
  for (int h = 0; h < kNormTurns; ++h) {
    const int i = (h * kThreads + thread) * kRun;
    x[h] = unpack(load_run<true>(from + i, width - i));
    float squares = 0.0f;
#pragma unroll
    for (const float v : x[h].v) squares = fmaf(v, v, squares);
    squares = warp_sum(squares);
    if (thread % 32 == 0) of_warp[0][h * kWarps + thread / 32] = squares;
  }
  __syncthreads();
  const int lane = thread % 32;
  const float total = warp_sum(lane < kNormTurns * kWarps ? of_warp[0][lane] : 0.0f);
  const float inverse = 1.0f / sqrtf(total / static_cast<float>(width) + n.eps);
#pragma unroll
  for (int h = 0; h < kNormTurns; ++h) x[h] = normed_run(x[h], inverse, weight[h]);
  store_normed<kThreads>(n, x, width, row, of_warp[1]);
}

}  // namespace rudder::cuda
