// What the kernels share that keep a row in the registers of one block, or of a cluster's
// (row_team.cuh): places, the norm, a branch, the way to fp8, the shapes of blocks. A row has the
// same bits in each of them, so what a compiler might fuse in one and not in another is spelt out.
// Included by .cu files only.
#pragma once

#include "rudder/cuda/kernels/device_vec.cuh"
#include "rudder/cuda/kernels/products/product_scales.cuh"
#include "rudder/cuda/kernels/rows/rows.h"

namespace rudder::cuda {

// One block a row; thread t has the runs t, t + threads, ... of it.
__device__ inline int row_column(int run) {
  return (run * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kRun;
}
inline constexpr int kMaxRowThreads = 1024;

__device__ inline void prefetch_to_l2(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}
// To L2 what a thread will read of a norm's weights, if there are any: a line is four threads'
// runs.
template <int kRuns>
__device__ void prefetch_weights(const float* weights, int64_t width) {
  if (weights == nullptr || threadIdx.x % 4 != 0) return;
#pragma unroll
  for (int r = 0; r < kRuns; ++r) {
    if (row_column(r) >= width) continue;
    prefetch_to_l2(weights + row_column(r));
  }
}

// A thread's runs of a row.
template <int kRuns, bool kAligned>
__device__ void load_row(const void* from, int64_t row, int width, Packed (&to)[kRuns]) {
#pragma unroll
  for (int r = 0; r < kRuns; ++r) {
    const int i = row_column(r);
    to[r] = load_run<kAligned>(static_cast<const Bf16*>(from) + row * width + i, width - i);
  }
}
template <int kRuns, bool kAligned>
__device__ void store_row(void* to, int64_t row, int width, const Packed (&from)[kRuns]) {
#pragma unroll
  for (int r = 0; r < kRuns; ++r) {
    const int i = row_column(r);
    store_run<kAligned>(static_cast<Bf16*>(to) + row * width + i, width - i, from[r]);
  }
}
// Of a norm's weights; null: there is none, and `to` stays as it is.
template <int kRuns, bool kAligned>
__device__ void load_weights(const float* weights, int width, Floats (&to)[kRuns]) {
  if (weights == nullptr) return;
#pragma unroll
  for (int r = 0; r < kRuns; ++r) {
    const int i = row_column(r);
    to[r] = load_floats<kAligned>(weights + i, width - i);
  }
}

// The largest magnitude of a thread's runs.
template <int kRuns>
__device__ float highest_of(const Floats (&x)[kRuns]) {
  float highest = 0.0f;
#pragma unroll
  for (const Floats& run : x) {
#pragma unroll
    for (const float v : run.v) highest = fmaxf(highest, fabsf(v));
  }
  return highest;
}

// Quantises a row that the block's registers hold; values past the end are zero.
template <int kRuns, bool kAligned>
__device__ void store_row_fp8(const Floats (&x)[kRuns], int64_t row, int width, void* out,
                              float* out_scale, float* scratch) {
  const Fp8RowScale scale(block_max(highest_of(x), scratch));
  if (threadIdx.x == 0) out_scale[row] = scale.value();
#pragma unroll
  for (int r = 0; r < kRuns; ++r) {
    const int i = row_column(r);
    store_run_fp8<kAligned>(static_cast<uint8_t*>(out) + row * width + i, width - i,
                            scale.stored(x[r]));
  }
}

// Over the threads that have a row: those of a block, whose way to add is `scratch` of block_sum().
__device__ inline float sum_over_row(float v, float* scratch) {
  return block_sum(v, scratch);
}

// 1 / sqrt(mean(x^2) + eps) of a row in registers; `threads` is what sum_over_row() takes.
template <int kRuns, typename Run, typename Threads>
__device__ float inverse_rms(const Run (&x)[kRuns], int width, float eps, Threads& threads) {
  float squares = 0.0f;
#pragma unroll
  for (const Run& run : x) {
    const Floats f = unpack(run);
#pragma unroll
    for (const float v : f.v) squares = fmaf(v, v, squares);
  }
  const float mean = sum_over_row(squares, threads) / static_cast<float>(width);
  return 1.0f / sqrtf(mean + eps);
}

// The forms in which a kernel writes its row.
enum class RowForms : uint8_t { kBf16, kFp8, kBoth };

// What the kernel that writes fp8 has of delta: a product of fp8 values may come without its
// scales.
template <bool kFp8>
struct DeltaRun {
  using Type = Packed;
  template <bool kAligned>
  __device__ static Type load(const ResidualNormParams& p, int64_t row, int i, int left) {
    return load_run<kAligned>(static_cast<const Bf16*>(p.delta) + row * p.hidden + i, left);
  }
};
template <>
struct DeltaRun<true> {
  using Type = Floats;
  template <bool kAligned>
  __device__ static Type load(const ResidualNormParams& p, int64_t row, int i, int left) {
    const Packed stored = DeltaRun<false>::load<kAligned>(p, row, i, left);
    return load_scales<kAligned>(p.delta_scales, row, i, left).applied_to(unpack(stored));
  }
};

inline bool is_aligned_residual(const ResidualNormParams& p) {
  return p.hidden % kRun == 0 && is_aligned(p.x) && is_aligned(p.delta) &&
         is_aligned(p.delta_norm) && is_aligned(p.delta_alpha) && is_aligned(p.norm) &&
         is_aligned(p.norm_alpha) && is_aligned(p.out) && is_aligned(p.out_act) &&
         is_aligned(p.delta_scales.column) && is_aligned(p.delta_scales.bias);
}

// A run of a row after an RMS norm.
__device__ inline Floats normed_run(Floats x, float inverse, const Floats& weight) {
#pragma unroll
  for (int j = 0; j < kRun; ++j) x.v[j] = __fmul_rn(__fmul_rn(x.v[j], inverse), weight.v[j]);
  return x;
}

// A norm of a row in registers: none, RMS, or with kClips a UClipNorm where it has an alpha.
template <bool kClips>
class RowNorm {
 public:
  // All threads that have the row take part.
  template <int kRuns, typename Run, typename Threads>
  __device__ RowNorm(const float* weight, const float* alpha, const Run (&x)[kRuns], int width,
                     float eps, Threads& threads)
      : is_there_(weight != nullptr), alpha_(alpha) {
    if (is_there_ && !clips()) inverse_ = inverse_rms(x, width, eps, threads);
  }

  // The run that begins at column i, `left` columns before the row's end.
  template <bool kAligned>
  __device__ Floats applied_to(const Floats& x, const Floats& weight, int i, int left) const {
    if (!is_there_) return x;
    if (!clips()) return normed_run(x, inverse_, weight);
    return clipped_run(x, load_floats<kAligned>(alpha_ + i, left), weight);
  }

 private:
  __device__ bool clips() const { return kClips && alpha_ != nullptr; }

  bool is_there_;
  const float* alpha_;
  float inverse_ = 1.0f;
};

inline bool clips(const ResidualNormParams& p) {
  return p.delta_alpha != nullptr || p.norm_alpha != nullptr;
}

// A branch, as most models have no scale.
__device__ inline Floats scaled_run(Floats x, float scale) {
  if (scale == 1.0f) return x;
#pragma unroll
  for (int j = 0; j < kRun; ++j) x.v[j] = __fmul_rn(x.v[j], scale);
  return x;
}

// A run of a branch as it is added, but for its taps; `rounds` as of ResidualNormParams. kScales:
// it may be scaled, else it has no instruction for that.
template <bool kScales>
__device__ Floats branch_run(const ResidualNormParams& p, Floats branch) {
  if (p.rounds) branch = rounded(branch);
  if constexpr (kScales) branch = scaled_run(branch, p.delta_scale);
  return branch;
}

// A run of the sum, scaled likewise.
template <bool kScales>
__device__ Floats sum_run(const ResidualNormParams& p, Floats x, const Floats& branch) {
#pragma unroll
  for (int j = 0; j < kRun; ++j) x.v[j] = __fadd_rn(x.v[j], branch.v[j]);
  if constexpr (kScales) x = scaled_run(x, p.sum_scale);
  return x;
}

// A row of the branch as it is added, but for its taps: take(r, run) has its runs. meanwhile() runs
// while delta comes.
template <int kRuns, bool kAligned, bool kFp8, bool kClips, bool kScales, typename Meanwhile,
          typename Take>
__device__ void load_branch(const ResidualNormParams& p, int64_t row, float* scratch,
                            Meanwhile meanwhile, Take take) {
  const int hidden = static_cast<int>(p.hidden);
  typename DeltaRun<kFp8>::Type delta[kRuns];
#pragma unroll
  for (int r = 0; r < kRuns; ++r) {
    const int i = row_column(r);
    delta[r] = DeltaRun<kFp8>::template load<kAligned>(p, row, i, hidden - i);
  }
  meanwhile();
  const RowNorm<kClips> norm(p.delta_norm, p.delta_alpha, delta, hidden, p.delta_eps, scratch);
#pragma unroll
  for (int r = 0; r < kRuns; ++r) {
    const int i = row_column(r);
    Floats weight = {};
    if (p.delta_norm != nullptr) weight = load_floats<kAligned>(p.delta_norm + i, hidden - i);
    take(r, branch_run<kScales>(
                p, norm.applied_to<kAligned>(unpack(delta[r]), weight, i, hidden - i)));
  }
}

template <int kRunsOfThis, bool kAlignedOfThis>
struct RowShape {
  static constexpr int kRuns = kRunsOfThis;
  static constexpr bool kAligned = kAlignedOfThis;
};

// Calls launch(RowShape, threads) for the fewest runs a thread, of at most kMaxRuns, that a block
// of a row can have. One shape serves the rows that are not aligned.
template <int kMaxRuns, typename Launch>
cudaError_t for_row_shape(int64_t width, bool aligned, Launch launch) {
  constexpr int kOddRuns = kMaxRuns / 2;
  const int64_t runs = (width + kRun - 1) / kRun;
  const int64_t max_runs = int64_t{aligned ? kMaxRuns : kOddRuns} * kMaxRowThreads;
  if (runs > max_runs) return cudaErrorInvalidValue;
  const auto threads = [runs](int per_thread) {
    return static_cast<unsigned>((runs + per_thread * 32 - 1) / (per_thread * 32) * 32);
  };
  if (!aligned) return launch(RowShape<kOddRuns, false>{}, threads(kOddRuns));
  if (runs <= 512) return launch(RowShape<1, true>{}, threads(1));
  if (runs <= 2 * kMaxRowThreads) return launch(RowShape<2, true>{}, threads(2));
  return launch(RowShape<kMaxRuns, true>{}, threads(kMaxRuns));
}

}  // namespace rudder::cuda
