// residual_norm and quantise of many rows (rows.h, rows_ahead.cuh).
#include "rudder/cuda/kernels/rows/row_block.cuh"
#include "rudder/cuda/kernels/rows/rows_ahead.cuh"
#include "rudder/cuda/kernels/rows/rows_ahead.h"

namespace rudder::cuda {
namespace {

// A row that the block's registers hold. kWhole: every thread has all of its runs.
template <bool kWhole, typename Column>
__device__ void store_ahead_fp8(const Floats (&y)[kAheadRuns], int64_t row, int width, void* out,
                                float* out_scale, AheadBlock& block, Column column) {
  const Fp8RowScale scale(block.max(highest_of(y)));
  if (threadIdx.x == 0) out_scale[row] = scale.value();
#pragma unroll
  for (int r = 0; r < kAheadRuns; ++r) {
    const int i = column(r);
    store_run_fp8<true>(static_cast<uint8_t*>(out) + row * width + i, kWhole ? kRun : width - i,
                        scale.stored(y[r]));
  }
}

template <bool kWhole>
__global__ void __launch_bounds__(kMaxAheadThreads)
    quantise_ahead_kernel(const __grid_constant__ QuantiseParams p) {
  extern __shared__ uint4 cells_shared[];
  __shared__ AheadBlock::Shared block_shared;
  AheadBlock block(block_shared);
  const AheadCells<kAheadRuns> cells(cells_shared);
  const int width = static_cast<int>(p.width);
  const int first = ahead_column();
  const auto column = [first](int r) { return first + r * kAheadStride; };
  const auto ask = [&](int64_t row, int r) {
    cells.ask(r, static_cast<const Bf16*>(p.x) + row * width + column(r),
              kWhole || column(r) < width);
  };
  if (p.lets_next_begin) dependency_trigger();
  dependency_wait();
  dependency_trigger();
#pragma unroll
  for (int r = 0; r < kAheadRuns; ++r) ask(blockIdx.x, r);
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const int64_t next = row + gridDim.x;
    cells.wait();
    Floats x[kAheadRuns];
#pragma unroll
    for (int r = 0; r < kAheadRuns; ++r) x[r] = unpack(cells.take(r));
    if (next < p.rows) {
#pragma unroll
      for (int r = 0; r < kAheadRuns; ++r) ask(next, r);
    }
    store_ahead_fp8<kWhole>(x, row, width, p.out, p.out_scale, block, column);
  }
}

// kVirtual threads of row_block.cuh in one, of kRuns runs each. kFull: the branch may have a norm,
// scales, a bias and points at which it is rounded. kWhole: every thread has all of its runs.
template <int kVirtual, int kRuns, bool kFp8, bool kFull, bool kWhole>
class AheadNorm {
  static_assert(kVirtual * kRuns == kAheadRuns);
  using Cells = AheadCells<2 * kAheadRuns>;

 public:
  __device__ AheadNorm(const ResidualNormParams& p, int threads_of_row, const Cells& cells,
                       AheadBlock& block)
      : p_(p),
        hidden_(static_cast<int>(p.hidden)),
        threads_of_row_(threads_of_row),
        first_thread_(static_cast<int>(threadIdx.x / 32 * kVirtual * 32 + threadIdx.x % 32)),
        cells_(cells),
        block_(block) {}

  __device__ void ask(int64_t row) const {
    if (row >= p_.rows) return;
#pragma unroll
    for (int k = 0; k < kAheadRuns; ++k) ask(run_of(p_.x, row), run_of(p_.delta, row), k);
    if (is_scaled()) cells_.ask_number(p_.delta_scales.row + row);
  }

  __device__ void work(int64_t row, int64_t next) {
    cells_.wait();
    const float row_scale = is_scaled() ? cells_.take_number() : 1.0f;
    Packed x[kAheadRuns];
    add_branch(row, next, row_scale, x);
    if (p_.out == nullptr) return;
    float inverse = 1.0f;
    if (p_.norm != nullptr) inverse = inverse_of(x, p_.eps);
    Floats y[kFp8 ? kAheadRuns : 1];
    Bf16* const out = run_of(p_.out, row);
#pragma unroll
    for (int k = 0; k < kAheadRuns; ++k) {
      Floats run = unpack(x[k]);
      if (p_.norm != nullptr) run = normed_run(run, inverse, weight(p_.norm, k));
      if constexpr (kFp8) {
        y[k] = kFull && p_.rounds ? rounded(run) : run;
      } else {
        store_run<true>(out + offset(k), left(k), pack(run));
      }
    }
    if constexpr (kFp8) {
      store_ahead_fp8<kWhole>(y, row, hidden_, p_.out, p_.out_scale, block_,
                              [this](int k) { return first_thread_ * kRun + offset(k); });
    }
  }

 private:
  // Whether the branch comes without its scales.
  __device__ bool is_scaled() const {
    return kFp8 && p_.delta_scales.row != nullptr;
  }
  // From the thread's first run to run k, which is run k % kRuns of virtual thread k / kRuns.
  __device__ int offset(int k) const {
    return (k % kRuns * threads_of_row_ + k / kRuns * 32) * kRun;
  }
  // Columns up to the row's end, as load_run() asks.
  __device__ int left(int k) const {
    if (kWhole) return kRun;
    const bool exists = first_thread_ + k / kRuns * 32 < threads_of_row_;
    return exists ? hidden_ - first_thread_ * kRun - offset(k) : 0;
  }
  // The thread's first run.
  __device__ Bf16* run_of(const void* rows, int64_t row) const {
    return static_cast<Bf16*>(const_cast<void*>(rows)) + row * hidden_ + first_thread_ * kRun;
  }
  __device__ Floats weight(const float* weights, int k) const {
    return load_floats<true>(weights + first_thread_ * kRun + offset(k), left(k));
  }

  __device__ void ask(const Bf16* x, const Bf16* delta, int k) const {
    cells_.ask(2 * k, x + offset(k), left(k) > 0);
    if (p_.delta != nullptr) cells_.ask(2 * k + 1, delta + offset(k), left(k) > 0);
  }

  // Run k of the branch as the product means it.
  __device__ Floats branch(int k, float row_scale) const {
    const Floats stored = unpack(cells_.take(2 * k + 1));
    if (!is_scaled()) return stored;
    RunScales scales;
    scales.pending = true;
    scales.row = row_scale;
    scales.column = weight(p_.delta_scales.column, k);
    if (kFull && p_.delta_scales.bias != nullptr) {
      scales.bias = load_run<true>(
          static_cast<const Bf16*>(p_.delta_scales.bias) + first_thread_ * kRun + offset(k),
          left(k));
    }
    return scales.applied_to(stored);
  }

  __device__ void add_branch(int64_t row, int64_t next, float row_scale, Packed (&x)[kAheadRuns]) {
    float inverse = 1.0f;
    if constexpr (kFull) {
      if (p_.delta != nullptr && p_.delta_norm != nullptr) {
        float squares[kVirtual] = {};
#pragma unroll
        for (int k = 0; k < kAheadRuns; ++k) add_squares(branch(k, row_scale), squares[k / kRuns]);
        inverse = inverse_of(squares, p_.delta_eps);
      }
    }
    Bf16* const out = run_of(p_.x, row);
    const Bf16* const next_x = run_of(p_.x, next);
    const Bf16* const next_delta = run_of(p_.delta, next);
    if (is_scaled() && next < p_.rows) cells_.ask_number(p_.delta_scales.row + next);
#pragma unroll
    for (int k = 0; k < kAheadRuns; ++k) {
      x[k] = cells_.take(2 * k);
      Floats add = {};
      if (p_.delta != nullptr) add = branch(k, row_scale);
      if (next < p_.rows) ask(next_x, next_delta, k);
      if (p_.delta != nullptr) {
        if constexpr (kFull) {
          if (p_.delta_norm != nullptr) add = normed_run(add, inverse, weight(p_.delta_norm, k));
          add = branch_run<true>(p_, add);
          if (p_.rounds) add = rounded(add);
        }
        x[k] = pack(sum_run<kFull>(p_, unpack(x[k]), add));
      } else if constexpr (kFull) {
        x[k] = pack(scaled_run(unpack(x[k]), p_.sum_scale));
      }
      if (p_.delta != nullptr || kFull) store_run<true>(out + offset(k), left(k), x[k]);
    }
  }

  __device__ static void add_squares(const Floats& run, float& squares) {
#pragma unroll
    for (const float v : run.v) squares = fmaf(v, v, squares);
  }
  __device__ float inverse_of(float (&squares)[kVirtual], float eps) {
    const float mean = block_.sum(squares, threads_of_row_) / static_cast<float>(hidden_);
    return 1.0f / sqrtf(mean + eps);
  }
  __device__ float inverse_of(const Packed (&x)[kAheadRuns], float eps) {
    float squares[kVirtual] = {};
#pragma unroll
    for (int k = 0; k < kAheadRuns; ++k) add_squares(unpack(x[k]), squares[k / kRuns]);
    return inverse_of(squares, eps);
  }

  const ResidualNormParams& p_;
  const int hidden_;
  const int threads_of_row_;
  const int first_thread_;
  const Cells& cells_;
  AheadBlock& block_;
};

struct AheadNormParams {
  ResidualNormParams norm;
  int threads_of_row;
};

// A thread reads and writes the same elements, so that delta may be out.
template <int kVirtual, int kRuns, bool kFp8, bool kFull, bool kWhole>
__global__ void __launch_bounds__(kMaxAheadThreads)
    residual_norm_ahead_kernel(const __grid_constant__ AheadNormParams params) {
  extern __shared__ uint4 cells_shared[];
  __shared__ AheadBlock::Shared block_shared;
  const ResidualNormParams& p = params.norm;
  AheadBlock block(block_shared);
  const AheadCells<2 * kAheadRuns> cells(cells_shared);
  AheadNorm<kVirtual, kRuns, kFp8, kFull, kWhole> norm(p, params.threads_of_row, cells, block);
  if (p.lets_next_begin) dependency_trigger();
  dependency_wait();
  dependency_trigger();
  norm.ask(blockIdx.x);
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    norm.work(row, row + gridDim.x);
  }
}

template <int kVirtual, int kRuns, bool kFull, bool kWhole>
cudaError_t launch_norm(const ResidualNormParams& p, unsigned threads_of_row, cudaStream_t stream) {
  const unsigned threads = (threads_of_row + kVirtual * 32 - 1) / (kVirtual * 32) * 32;
  // What waits for numbers of columns wants more threads; fewer rows at a time are easier on
  // memory.
  const int64_t threads_per_sm = kFull || p.delta_scales.row != nullptr ? kMaxAheadThreads : 512;
  const size_t bytes = AheadCells<2 * kAheadRuns>::bytes(threads);
  const auto kernel = p.out_scale != nullptr
                          ? residual_norm_ahead_kernel<kVirtual, kRuns, true, kFull, kWhole>
                          : residual_norm_ahead_kernel<kVirtual, kRuns, false, kFull, kWhole>;
  return launch_ahead(kernel, AheadNormParams{p, static_cast<int>(threads_of_row)},
                      ahead_grid(p.rows, 1, threads, threads_per_sm, bytes), threads, bytes,
                      p.lets_next_begin, stream);
}

}  // namespace

bool goes_ahead(const ResidualNormParams& p) {
  constexpr int64_t kLeast = int64_t{2} << 20;  // numbers
  return p.rows * p.hidden >= kLeast && is_aligned_residual(p) && !clips(p);
}

cudaError_t launch_residual_norm_ahead(const ResidualNormParams& p, cudaStream_t stream) {
  return for_row_shape<2>(p.hidden, true, [&](auto shape, unsigned threads) {
    using Shape = decltype(shape);
    if constexpr (!Shape::kAligned) {
      return cudaErrorInvalidValue;
    } else {
      constexpr int kVirtual = kAheadRuns / Shape::kRuns;
      const bool is_full =
          p.delta_norm != nullptr || scales(p) || p.rounds || p.delta_scales.bias != nullptr;
      const bool is_whole =
          p.hidden == int64_t{Shape::kRuns} * kRun * threads && threads % (kVirtual * 32) == 0;
      const auto launch = is_whole ? (is_full ? launch_norm<kVirtual, Shape::kRuns, true, true>
                                              : launch_norm<kVirtual, Shape::kRuns, false, true>)
                                   : (is_full ? launch_norm<kVirtual, Shape::kRuns, true, false>
                                              : launch_norm<kVirtual, Shape::kRuns, false, false>);
      return launch(p, threads, stream);
    }
  });
}

bool goes_ahead(const QuantiseParams& p) {
  return p.width % kRun == 0 && is_aligned(p.x) && is_aligned(p.out) &&
         p.width <= kMaxQuantisedWidth;
}

cudaError_t launch_quantise_ahead(const QuantiseParams& p, cudaStream_t stream) {
  const unsigned threads = ahead_threads(p.width);
  const size_t bytes = AheadCells<kAheadRuns>::bytes(threads);
  return launch_ahead(
      is_whole_ahead(p.width) ? quantise_ahead_kernel<true> : quantise_ahead_kernel<false>, p,
      ahead_grid(p.rows, 1, threads, kMaxAheadThreads, bytes), threads, bytes, p.lets_next_begin,
      stream);
}

}  // namespace rudder::cuda
