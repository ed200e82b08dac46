#include "rudder/cuda/kernels/rows.h"

#include "rudder/cuda/kernels/device_vec.cuh"
#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/product_scales.cuh"

namespace rudder::cuda {
namespace {

template <bool kAligned, typename T>
__global__ void __launch_bounds__(kFlatThreads) embed_kernel(const EmbedParams p) {
  dependency_wait();
  dependency_trigger();
  const int64_t row = blockIdx.x;
  const int i = flat_column();
  const int left = static_cast<int>(p.hidden) - i;
  if (left <= 0) return;
  const T* from = static_cast<const T*>(p.table) + p.ids[row] * p.stride + i;
  Floats x;
  if constexpr (sizeof(T) == sizeof(float)) {
    x = load_floats<kAligned>(from, left);
  } else {
    x = unpack(load_run<kAligned>(from, left));
  }
#pragma unroll
  for (float& v : x.v) v *= p.scale;
  store_run<kAligned>(static_cast<Bf16*>(p.out) + row * p.hidden + i, left, pack(x));
}

template <bool kAligned>
__global__ void __launch_bounds__(kFlatThreads) gather_rows_kernel(const GatherRowsParams p) {
  dependency_wait();
  dependency_trigger();
  const int64_t row = blockIdx.x;
  const int i = flat_column();
  const int left = static_cast<int>(p.width) - i;
  if (left <= 0) return;
  const Bf16* from = static_cast<const Bf16*>(p.x) + p.from[row] * p.width + i;
  store_run<kAligned>(static_cast<Bf16*>(p.out) + row * p.width + i, left,
                      load_run<kAligned>(from, left));
}

// One block a row; thread t has the runs t, t + threads, ... of it.
__device__ int row_column(int run) {
  return (run * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kRun;
}
constexpr int kMaxRowThreads = 1024;

// Quantises a row that the block's registers hold; values past the end are zero.
template <int kRuns, bool kAligned>
__device__ void store_row_fp8(const Floats (&x)[kRuns], int64_t row, int width, void* out,
                              float* out_scale, float* scratch) {
  float highest = 0.0f;
#pragma unroll
  for (const Floats& run : x) {
#pragma unroll
    for (const float v : run.v) highest = fmaxf(highest, fabsf(v));
  }
  highest = block_max(highest, scratch);
  const Fp8RowScale scale(highest);
  if (threadIdx.x == 0) out_scale[row] = scale.value();
#pragma unroll
  for (int r = 0; r < kRuns; ++r) {
    const int i = row_column(r);
    store_run_fp8<kAligned>(static_cast<uint8_t*>(out) + row * width + i, width - i,
                            scale.stored(x[r]));
  }
}

template <int kRuns, bool kAligned>
__global__ void __launch_bounds__(kMaxRowThreads) quantise_kernel(const QuantiseParams p) {
  __shared__ float scratch[32];
  dependency_wait();
  dependency_trigger();
  const Bf16* row = static_cast<const Bf16*>(p.x) + blockIdx.x * p.width;
  Floats x[kRuns];
#pragma unroll
  for (int r = 0; r < kRuns; ++r) {
    const int i = row_column(r);
    x[r] = unpack(load_run<kAligned>(row + i, static_cast<int>(p.width) - i));
  }
  store_row_fp8<kRuns, kAligned>(x, blockIdx.x, static_cast<int>(p.width), p.out, p.out_scale,
                                 scratch);
}

// 1 / sqrt(mean(x^2) + eps) of a row in registers.
template <int kRuns, typename Run>
__device__ float inverse_rms(const Run (&x)[kRuns], int width, float eps, float* scratch) {
  float squares = 0.0f;
#pragma unroll
  for (const Run& run : x) {
    const Floats f = unpack(run);
#pragma unroll
    for (const float v : f.v) squares = fmaf(v, v, squares);
  }
  const float mean = block_sum(squares, scratch) / static_cast<float>(width);
  return 1.0f / sqrtf(mean + eps);
}

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

// x as it is to be normed: with delta added, stored and rounded.
template <int kRuns, bool kAligned, bool kFp8>
__device__ void add_delta(const ResidualNormParams& p, Packed (&x)[kRuns], float* scratch) {
  const int hidden = static_cast<int>(p.hidden);
  const int64_t row = int64_t{blockIdx.x} * hidden;
  typename DeltaRun<kFp8>::Type delta[kRuns];
#pragma unroll
  for (int r = 0; r < kRuns; ++r) {
    const int i = row_column(r);
    delta[r] = DeltaRun<kFp8>::template load<kAligned>(p, blockIdx.x, i, hidden - i);
  }
  const float inverse =
      p.delta_norm == nullptr ? 1.0f : inverse_rms(delta, hidden, p.delta_eps, scratch);
#pragma unroll
  for (int r = 0; r < kRuns; ++r) {
    const int i = row_column(r);
    Floats branch = unpack(delta[r]);
    if (p.delta_norm != nullptr) {
      const Floats weight = load_floats<kAligned>(p.delta_norm + i, hidden - i);
#pragma unroll
      for (int j = 0; j < kRun; ++j) branch.v[j] = branch.v[j] * inverse * weight.v[j];
    }
    Floats sum = unpack(x[r]);
#pragma unroll
    for (int j = 0; j < kRun; ++j) sum.v[j] += branch.v[j];
    x[r] = pack(sum);
    store_run<kAligned>(static_cast<Bf16*>(p.x) + row + i, hidden - i, x[r]);
  }
}

// A thread reads and writes the same elements, so that delta may be out.
template <int kRuns, bool kAligned, bool kFp8>
__global__ void __launch_bounds__(kMaxRowThreads) residual_norm_kernel(const ResidualNormParams p) {
  __shared__ float scratch[3][32];
  const int hidden = static_cast<int>(p.hidden);
  // Weights do not change: they are fetched while the kernel before this one ends.
  Floats weight[kRuns] = {};
  if (p.norm != nullptr) {
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      const int i = row_column(r);
      weight[r] = load_floats<kAligned>(p.norm + i, hidden - i);
    }
  }
  dependency_wait();
  dependency_trigger();
  const int64_t row = int64_t{blockIdx.x} * hidden;
  Packed x[kRuns];
#pragma unroll
  for (int r = 0; r < kRuns; ++r) {
    const int i = row_column(r);
    x[r] = load_run<kAligned>(static_cast<const Bf16*>(p.x) + row + i, hidden - i);
  }
  if (p.delta != nullptr) add_delta<kRuns, kAligned, kFp8>(p, x, scratch[0]);
  if (p.out == nullptr) return;
  const float inverse = p.norm == nullptr ? 1.0f : inverse_rms(x, hidden, p.eps, scratch[1]);
  Floats y[kFp8 ? kRuns : 1];
#pragma unroll
  for (int r = 0; r < kRuns; ++r) {
    const int i = row_column(r);
    Floats run = unpack(x[r]);
    if (p.norm != nullptr) {
#pragma unroll
      for (int j = 0; j < kRun; ++j) run.v[j] = run.v[j] * inverse * weight[r].v[j];
    }
    if constexpr (kFp8) {
      y[r] = run;
    } else {
      store_run<kAligned>(static_cast<Bf16*>(p.out) + row + i, hidden - i, pack(run));
    }
  }
  if constexpr (kFp8) {
    store_row_fp8<kRuns, kAligned>(y, blockIdx.x, hidden, p.out, p.out_scale, scratch[2]);
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

__global__ void __launch_bounds__(kFlatThreads)
    softcap_kernel(float* logits, int64_t count, float cap, bool aligned) {
  dependency_wait();
  dependency_trigger();
  const int64_t i = (int64_t{blockIdx.x} * kFlatThreads + threadIdx.x) * 4;
  if (aligned && i + 4 <= count) {
    float4 x = *reinterpret_cast<const float4*>(logits + i);
    x.x = cap * tanhf(x.x / cap);
    x.y = cap * tanhf(x.y / cap);
    x.z = cap * tanhf(x.z / cap);
    x.w = cap * tanhf(x.w / cap);
    *reinterpret_cast<float4*>(logits + i) = x;
    return;
  }
  for (int64_t j = i; j < i + 4 && j < count; ++j) logits[j] = cap * tanhf(logits[j] / cap);
}

}  // namespace

cudaError_t launch_embed(const EmbedParams& p, cudaStream_t stream) {
  if (p.rows == 0 || p.hidden == 0) return cudaSuccess;
  const bool aligned =
      p.hidden % kRun == 0 && p.stride % kRun == 0 && is_aligned(p.table) && is_aligned(p.out);
  const bool is_float = p.element == Element::kF32;
  if (!is_float && p.element != Element::kBf16) return cudaErrorInvalidValue;
  const auto kernel = is_float ? (aligned ? embed_kernel<true, float> : embed_kernel<false, float>)
                               : (aligned ? embed_kernel<true, Bf16> : embed_kernel<false, Bf16>);
  return launch_pdl(kernel, flat_grid(p.rows, p.hidden), dim3(kFlatThreads), 0, stream, p);
}

cudaError_t launch_gather_rows(const GatherRowsParams& p, cudaStream_t stream) {
  if (p.rows == 0 || p.width == 0) return cudaSuccess;
  const bool aligned = p.width % kRun == 0 && is_aligned(p.x) && is_aligned(p.out);
  const auto kernel = aligned ? gather_rows_kernel<true> : gather_rows_kernel<false>;
  return launch_pdl(kernel, flat_grid(p.rows, p.width), dim3(kFlatThreads), 0, stream, p);
}

cudaError_t launch_quantise(const QuantiseParams& p, cudaStream_t stream) {
  if (p.rows == 0 || p.width == 0) return cudaSuccess;
  const bool aligned = p.width % kRun == 0 && is_aligned(p.x) && is_aligned(p.out);
  return for_row_shape<4>(p.width, aligned, [&](auto shape, unsigned threads) {
    return launch_pdl(quantise_kernel<shape.kRuns, shape.kAligned>,
                      dim3(static_cast<unsigned>(p.rows)), dim3(threads), 0, stream, p);
  });
}

cudaError_t launch_residual_norm(const ResidualNormParams& p, cudaStream_t stream) {
  if (p.rows == 0 || p.hidden == 0) return cudaSuccess;
  const bool aligned = p.hidden % kRun == 0 && is_aligned(p.x) && is_aligned(p.delta) &&
                       is_aligned(p.delta_norm) && is_aligned(p.norm) && is_aligned(p.out) &&
                       is_aligned(p.delta_scales.column) && is_aligned(p.delta_scales.bias);
  if (p.delta_scales.row != nullptr && p.out_scale == nullptr) return cudaErrorInvalidValue;
  return for_row_shape<2>(p.hidden, aligned, [&](auto shape, unsigned threads) {
    const auto kernel = p.out_scale != nullptr
                            ? residual_norm_kernel<shape.kRuns, shape.kAligned, true>
                            : residual_norm_kernel<shape.kRuns, shape.kAligned, false>;
    return launch_pdl(kernel, dim3(static_cast<unsigned>(p.rows)), dim3(threads), 0, stream, p);
  });
}

cudaError_t launch_softcap(float* logits, int64_t count, float cap, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const int64_t blocks = (count + 4 * kFlatThreads - 1) / (4 * kFlatThreads);
  return launch_pdl(softcap_kernel, dim3(static_cast<unsigned>(blocks)), dim3(kFlatThreads), 0,
                    stream, logits, count, cap, is_aligned(logits));
}

}  // namespace rudder::cuda
