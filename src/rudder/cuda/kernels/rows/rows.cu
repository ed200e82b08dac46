#include "rudder/cuda/kernels/rows/rows.h"

#include <algorithm>
#include <cfloat>

#include "rudder/cuda/kernels/device_vec.cuh"
#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/rows/row_block.cuh"
#include "rudder/cuda/kernels/rows/rows_ahead.h"

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
  const int64_t from = p.from[row];
  const Bf16* const x = static_cast<const Bf16*>(p.x) + from * p.width + i;
  store_run<kAligned>(static_cast<Bf16*>(p.out) + row * p.width + i, left,
                      load_run<kAligned>(x, from < 0 ? 0 : left));
}

template <bool kAligned>
__global__ void __launch_bounds__(kFlatThreads) place_rows_kernel(const PlaceRowsParams p) {
  dependency_wait();
  dependency_trigger();
  const int64_t t = blockIdx.x;
  const int i = flat_column();
  const int left = static_cast<int>(p.width) - i;
  int64_t row = p.rows == nullptr ? t : p.rows[t];
  if (left <= 0 || row < 0) return;
  if (p.block_size > 0) {
    row = row / p.block_size / p.group_layers * p.block_size + row % p.block_size;
  }
  store_run<kAligned>(static_cast<Bf16*>(p.out) + row * p.out_width + p.column + i, left,
                      load_run<kAligned>(static_cast<const Bf16*>(p.x) + t * p.width + i, left));
}

__global__ void __launch_bounds__(kFlatThreads) lowest_kernel(float* logits, int64_t count) {
  dependency_wait();
  dependency_trigger();
  const int64_t stride = int64_t{gridDim.x} * kFlatThreads;
  for (int64_t i = int64_t{blockIdx.x} * kFlatThreads + threadIdx.x; i < count; i += stride) {
    logits[i] = -FLT_MAX;
  }
}

__global__ void __launch_bounds__(kFlatThreads) spread_kernel(const SpreadLogitsParams p) {
  dependency_wait();
  dependency_trigger();
  const int64_t row = blockIdx.x;
  const int64_t j = int64_t{blockIdx.y} * kFlatThreads + threadIdx.x;
  if (j < p.count) p.out[row * p.vocab + p.ids[j]] = p.x[row * p.count + j];
}

template <bool kAligned>
__global__ void __launch_bounds__(kFlatThreads) residual_act_kernel(const ResidualActParams p) {
  dependency_wait();
  dependency_trigger();
  const int i = flat_column();
  const int left = static_cast<int>(p.width) - i;
  if (left <= 0) return;
  Bf16* const x = static_cast<Bf16*>(p.x) + blockIdx.x * p.width + i;
  const Bf16* const y = static_cast<const Bf16*>(p.y) + blockIdx.x * p.width + i;
  Floats sum = unpack(load_run<kAligned>(x, left));
  const Floats act = unpack(load_run<kAligned>(y, left));
#pragma unroll
  for (int j = 0; j < kRun; ++j) sum.v[j] += __fdividef(act.v[j], 1.0f + __expf(-act.v[j]));
  store_run<kAligned>(x, left, pack(sum));
}

// Of rows that are not aligned.
template <int kRuns>
__global__ void __launch_bounds__(kMaxRowThreads) quantise_kernel(const QuantiseParams p) {
  __shared__ float scratch[32];
  if (p.lets_next_begin) dependency_trigger();
  dependency_wait();
  dependency_trigger();
  const Bf16* row = static_cast<const Bf16*>(p.x) + blockIdx.x * p.width;
  Floats x[kRuns];
#pragma unroll
  for (int r = 0; r < kRuns; ++r) {
    const int i = row_column(r);
    x[r] = unpack(load_run<false>(row + i, static_cast<int>(p.width) - i));
  }
  store_row_fp8<kRuns, false>(x, blockIdx.x, static_cast<int>(p.width), p.out, p.out_scale,
                              scratch);
}

// x as it is to be normed: with delta added, stored and rounded.
template <int kRuns, bool kAligned, bool kFp8, bool kClips, bool kScales>
__device__ void add_delta(const ResidualNormParams& p, Packed (&x)[kRuns], float* scratch) {
  const int hidden = static_cast<int>(p.hidden);
  const int64_t row = int64_t{blockIdx.x} * hidden;
  const auto add = [&](int r, Floats branch) {
    if (kScales && p.rounds) branch = rounded(branch);
    x[r] = pack(sum_run<kScales>(p, unpack(x[r]), branch));
    const int i = row_column(r);
    store_run<kAligned>(static_cast<Bf16*>(p.x) + row + i, hidden - i, x[r]);
  };
  load_branch<kRuns, kAligned, kFp8, kClips, kScales>(
      p, blockIdx.x, scratch, [] {}, add);
}

// x as it is to be normed, where nothing is added.
template <int kRuns, bool kAligned>
__device__ void scale_sum(const ResidualNormParams& p, Packed (&x)[kRuns]) {
#pragma unroll
  for (int r = 0; r < kRuns; ++r) x[r] = pack(scaled_run(unpack(x[r]), p.sum_scale));
  store_row<kRuns, kAligned>(p.x, blockIdx.x, static_cast<int>(p.hidden), x);
}

// A thread reads and writes the same elements, so that delta may be out. Without kClips no norm is
// a UClipNorm, which takes registers; without kScales nothing is scaled, which takes instructions.
template <int kRuns, bool kAligned, RowForms kForms, bool kClips, bool kScales>
__global__ void __launch_bounds__(kMaxRowThreads) residual_norm_kernel(const ResidualNormParams p) {
  constexpr bool kFp8 = kForms != RowForms::kBf16;
  __shared__ float scratch[3][32];
  const int hidden = static_cast<int>(p.hidden);
  // Weights do not change: they are fetched while the kernel before this one ends.
  Floats weight[kRuns] = {};
  load_weights<kRuns, kAligned>(p.norm, hidden, weight);
  prefetch_weights<kRuns>(p.delta_norm, hidden);
  if constexpr (kClips) {
    prefetch_weights<kRuns>(p.delta_alpha, hidden);
    prefetch_weights<kRuns>(p.norm_alpha, hidden);
  }
  if (p.lets_next_begin) dependency_trigger();
  dependency_wait();
  dependency_trigger();
  const int64_t row = int64_t{blockIdx.x} * hidden;
  Packed x[kRuns];
  load_row<kRuns, kAligned>(p.x, blockIdx.x, hidden, x);
  if (p.delta != nullptr) {
    add_delta<kRuns, kAligned, kFp8, kClips, kScales>(p, x, scratch[0]);
  } else if (kScales) {
    scale_sum<kRuns, kAligned>(p, x);
  }
  if (p.out == nullptr) return;
  const RowNorm<kClips> norm(p.norm, p.norm_alpha, x, hidden, p.eps, scratch[1]);
  Floats y[kFp8 ? kRuns : 1];
#pragma unroll
  for (int r = 0; r < kRuns; ++r) {
    const int i = row_column(r);
    const Floats run = norm.applied_to<kAligned>(unpack(x[r]), weight[r], i, hidden - i);
    if constexpr (kFp8) {
      y[r] = p.rounds ? rounded(run) : run;
      if constexpr (kForms == RowForms::kBoth) {
        store_run<kAligned>(static_cast<Bf16*>(p.out_act) + row + i, hidden - i, pack(run));
      }
    } else {
      store_run<kAligned>(static_cast<Bf16*>(p.out) + row + i, hidden - i, pack(run));
    }
  }
  if constexpr (kFp8) {
    store_row_fp8<kRuns, kAligned>(y, blockIdx.x, hidden, p.out, p.out_scale, scratch[2]);
  }
}

// Where every norm clips, no column needs another one: a thread has the norms' parameters of a run
// in registers and takes two rows after the other, whose numbers it asks for two rows ahead. It
// reads and writes the same elements, so that delta may be out.
constexpr unsigned kClipThreads = 256;
constexpr unsigned kClipThreadsPerSm = 512;
template <bool kAligned, bool kScales>
__global__ void __launch_bounds__(kClipThreads, kClipThreadsPerSm / kClipThreads)
    clip_residual_norm_kernel(const ResidualNormParams p) {
  constexpr int kTurn = 2;  // rows
  const int i = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kRun;
  const int left = static_cast<int>(p.hidden) - i;
  const auto fetched = [&](const float* weights) {
    return load_floats<kAligned>(weights + i, weights == nullptr ? 0 : left);
  };
  const Floats delta_weight = fetched(p.delta_norm);
  const Floats delta_alpha = fetched(p.delta_alpha);
  const Floats weight = fetched(p.norm);
  const Floats alpha = fetched(p.norm_alpha);
  if (p.lets_next_begin) dependency_trigger();
  dependency_wait();
  dependency_trigger();
  const auto loaded = [&](const void* rows, int64_t row) {
    const bool exists = rows != nullptr && row < p.rows;
    return load_run<kAligned>(static_cast<const Bf16*>(rows) + row * p.hidden + i,
                              exists ? left : 0);
  };
  const auto store = [&](void* rows, int64_t row, const Packed& run) {
    store_run<kAligned>(static_cast<Bf16*>(rows) + row * p.hidden + i, left, run);
  };
  const auto finish = [&](int64_t row, Packed x, const Packed& delta) {
    if (row >= p.rows) return;
    if (p.delta != nullptr) {
      Floats branch = unpack(delta);
      if (p.delta_norm != nullptr) branch = clipped_run(branch, delta_alpha, delta_weight);
      branch = branch_run<kScales>(p, branch);
      if (kScales && p.rounds) branch = rounded(branch);
      x = pack(sum_run<kScales>(p, unpack(x), branch));
      store(p.x, row, x);
    } else if (kScales) {
      x = pack(scaled_run(unpack(x), p.sum_scale));
      store(p.x, row, x);
    }
    if (p.out == nullptr) return;
    store(p.out, row, p.norm == nullptr ? x : pack(clipped_run(unpack(x), alpha, weight)));
  };
  const int64_t step = gridDim.x;
  Packed x[kTurn];
  Packed delta[kTurn];
  const auto load = [&](int64_t row) {
#pragma unroll
    for (int r = 0; r < kTurn; ++r) {
      x[r] = loaded(p.x, row + r * step);
      delta[r] = loaded(p.delta, row + r * step);
    }
  };
  load(blockIdx.x);
  for (int64_t row = blockIdx.x; row < p.rows; row += kTurn * step) {
    const Packed own_x[kTurn] = {x[0], x[1]};
    const Packed own_delta[kTurn] = {delta[0], delta[1]};
    load(row + kTurn * step);
#pragma unroll
    for (int r = 0; r < kTurn; ++r) finish(row + r * step, own_x[r], own_delta[r]);
  }
}

bool only_clips(const ResidualNormParams& p) {
  const auto clips_at_most = [](const float* norm, const float* alpha) {
    return norm == nullptr || alpha != nullptr;
  };
  return clips(p) && clips_at_most(p.delta_norm, p.delta_alpha) &&
         clips_at_most(p.norm, p.norm_alpha);
}

// As many rows for each block, as far as that goes, and no block behind another.
template <bool kScales>
cudaError_t launch_clips(const ResidualNormParams& p, cudaStream_t stream) {
  constexpr int64_t kSms = 132;
  const int64_t runs = (p.hidden + kRun - 1) / kRun;
  const int64_t parts = (runs + kClipThreads - 1) / kClipThreads;
  const int64_t threads = (runs + parts * 32 - 1) / (parts * 32) * 32;
  const int64_t most = std::max(int64_t{1}, kSms * kClipThreadsPerSm / (threads * parts));
  const int64_t rows_each = (p.rows + most - 1) / most;
  const dim3 grid(static_cast<unsigned>((p.rows + rows_each - 1) / rows_each),
                  static_cast<unsigned>(parts));
  const auto kernel = is_aligned_residual(p) ? clip_residual_norm_kernel<true, kScales>
                                             : clip_residual_norm_kernel<false, kScales>;
  return launch_pdl_in_front(kernel, grid, dim3(static_cast<unsigned>(threads)), 0, 1,
                             p.lets_next_begin, stream, p);
}

template <bool kClips, bool kScales>
cudaError_t launch_norms(const ResidualNormParams& p, cudaStream_t stream) {
  return for_row_shape<2>(p.hidden, is_aligned_residual(p), [&](auto shape, unsigned threads) {
    const auto kernel =
        p.out_scale != nullptr
            ? residual_norm_kernel<shape.kRuns, shape.kAligned, RowForms::kFp8, kClips, kScales>
            : residual_norm_kernel<shape.kRuns, shape.kAligned, RowForms::kBf16, kClips, kScales>;
    return launch_pdl_in_front(kernel, dim3(static_cast<unsigned>(p.rows)), dim3(threads), 0, 1,
                               p.lets_next_begin, stream, p);
  });
}

// In both forms: one kernel for every kind of norm and number of rows, since few models ask for it.
cudaError_t launch_both_forms(const ResidualNormParams& p, cudaStream_t stream) {
  return for_row_shape<2>(p.hidden, is_aligned_residual(p), [&](auto shape, unsigned threads) {
    return launch_pdl_in_front(
        residual_norm_kernel<shape.kRuns, shape.kAligned, RowForms::kBoth, true, true>,
        dim3(static_cast<unsigned>(p.rows)), dim3(threads), 0, 1, p.lets_next_begin, stream, p);
  });
}

template <bool kScales>
cudaError_t launch_kind(const ResidualNormParams& p, cudaStream_t stream) {
  if (p.out_scale == nullptr && only_clips(p)) return launch_clips<kScales>(p, stream);
  return clips(p) ? launch_norms<true, kScales>(p, stream)
                  : launch_norms<false, kScales>(p, stream);
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

cudaError_t launch_place_rows(const PlaceRowsParams& p, cudaStream_t stream) {
  if (p.count == 0 || p.width == 0) return cudaSuccess;
  const bool aligned = p.width % kRun == 0 && p.out_width % kRun == 0 && p.column % kRun == 0 &&
                       is_aligned(p.x) && is_aligned(p.out);
  const auto kernel = aligned ? place_rows_kernel<true> : place_rows_kernel<false>;
  return launch_pdl(kernel, flat_grid(p.count, p.width), dim3(kFlatThreads), 0, stream, p);
}

cudaError_t launch_spread_logits(const SpreadLogitsParams& p, cudaStream_t stream) {
  if (p.rows == 0 || p.vocab == 0) return cudaSuccess;
  constexpr int64_t kMostBlocks = 1024;
  const int64_t blocks = (p.rows * p.vocab + kFlatThreads - 1) / kFlatThreads;
  const cudaError_t error =
      launch_pdl(lowest_kernel, dim3(static_cast<unsigned>(std::min(blocks, kMostBlocks))),
                 dim3(kFlatThreads), 0, stream, p.out, p.rows * p.vocab);
  if (error != cudaSuccess || p.count == 0) return error;
  const dim3 grid(static_cast<unsigned>(p.rows),
                  static_cast<unsigned>((p.count + kFlatThreads - 1) / kFlatThreads));
  return launch_pdl(spread_kernel, grid, dim3(kFlatThreads), 0, stream, p);
}

cudaError_t launch_residual_act(const ResidualActParams& p, cudaStream_t stream) {
  if (p.rows == 0 || p.width == 0) return cudaSuccess;
  const bool aligned = p.width % kRun == 0 && is_aligned(p.x) && is_aligned(p.y);
  const auto kernel = aligned ? residual_act_kernel<true> : residual_act_kernel<false>;
  return launch_pdl(kernel, flat_grid(p.rows, p.width), dim3(kFlatThreads), 0, stream, p);
}

cudaError_t launch_quantise(const QuantiseParams& p, cudaStream_t stream) {
  if (p.rows == 0 || p.width == 0) return cudaSuccess;
  if (goes_ahead(p)) return launch_quantise_ahead(p, stream);
  return for_row_shape<4>(p.width, false, [&](auto shape, unsigned threads) {
    if constexpr (shape.kAligned) {
      return cudaErrorInvalidValue;
    } else {
      return launch_pdl_in_front(quantise_kernel<shape.kRuns>, dim3(static_cast<unsigned>(p.rows)),
                                 dim3(threads), 0, 1, p.lets_next_begin, stream, p);
    }
  });
}

cudaError_t launch_residual_norm(const ResidualNormParams& p, cudaStream_t stream) {
  if (p.rows == 0 || p.hidden == 0) return cudaSuccess;
  if (p.delta_scales.row != nullptr && p.out_scale == nullptr) return cudaErrorInvalidValue;
  if (p.out_act != nullptr) {
    return p.out_scale == nullptr ? cudaErrorInvalidValue : launch_both_forms(p, stream);
  }
  if (goes_ahead(p)) return launch_residual_norm_ahead(p, stream);
  return scales(p) ? launch_kind<true>(p, stream) : launch_kind<false>(p, stream);
}

}  // namespace rudder::cuda
