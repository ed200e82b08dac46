// The residual norm with taps (tapped_rows.h): a block has a row, as in rows.cu, and in fp32
// between its sum and its rounding.
#include "rudder/cuda/kernels/taps/tapped_rows.h"

#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/rows/row_block.cuh"
#include "rudder/cuda/kernels/taps/taps.cuh"

namespace rudder::cuda {
namespace {

constexpr int kSmallBlock = 512;
constexpr int kLargeBlock = 896;

// A thread reads and writes the same elements, so that delta may be out.
// kFew: of no more rows than multiprocessors, so a block may have all registers.
template <int kRuns, bool kAligned, RowForms kForms, int kMaxThreads, bool kOnlyAdds, bool kFew>
__global__ void __launch_bounds__(kMaxThreads, kMaxThreads <= kSmallBlock && !kFew ? 2 : 1)
    tapped_residual_norm_kernel(const __grid_constant__ ResidualNormParams p,
                                const __grid_constant__ TapParams<kResidualPoints> tap_params) {
  constexpr bool kFp8 = kForms != RowForms::kBf16;
  constexpr bool kIsSmall = kMaxThreads <= kSmallBlock;
  using Taps = TokenTaps<BlockTeam, kResidualPoints, kRuns, kAligned, kOnlyAdds, kFew>;
  extern __shared__ float4 fetched[];
  __shared__ float scratch[3][32];
  __shared__ BlockTeam::Shared team_shared;
  __shared__ FeatureShared features;
  __shared__ FeaturesAheadShared ahead_shared;
  const int hidden = static_cast<int>(p.hidden);
  const auto row = static_cast<int>(blockIdx.x);
  BlockTeam team(team_shared);
  Taps taps(tap_params, team, features, fetched, hidden);
  taps.load(row);
  // A large block has no registers for the weights of the norm while programs run.
  Floats norm[kRuns] = {};
  if constexpr (kIsSmall) {
    load_weights<kRuns, kAligned>(p.norm, hidden, norm);
  } else {
    prefetch_weights<kRuns>(p.norm, hidden);
  }
  prefetch_weights<kRuns>(p.delta_norm, hidden);
  prefetch_weights<kRuns>(p.delta_alpha, hidden);
  prefetch_weights<kRuns>(p.norm_alpha, hidden);
  taps.prefetch();
  if constexpr (kFew) taps.load_features(ahead_shared);
  if (p.lets_next_begin) dependency_trigger();
  if constexpr (kOnlyAdds) taps.fetch_first();
  dependency_wait();
  dependency_trigger();
  Packed x[kRuns];
  load_row<kRuns, kAligned>(p.x, row, hidden, x);
  Floats h[kRuns] = {};
  if (p.delta != nullptr) {
    load_branch<kRuns, kAligned, kFp8, true, true>(
        p, row, scratch[0], [&] { taps.look_up(row); },
        [&](int r, const Floats& run) { h[r] = run; });
    if constexpr (!kOnlyAdds) taps.at(kDeltaPoint, h);
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      h[r] = sum_run<true>(p, unpack(x[r]), p.rounds ? rounded(h[r]) : h[r]);
    }
  } else {
    taps.look_up(row);
#pragma unroll
    for (int r = 0; r < kRuns; ++r) h[r] = scaled_run(unpack(x[r]), p.sum_scale);
  }
  taps.at_both(kFirstXPoint, p.rounds, h);
#pragma unroll
  for (int r = 0; r < kRuns; ++r) x[r] = pack(h[r]);
  const bool changes = p.delta != nullptr || p.sum_scale != 1.0f || taps.is_active();
  if (changes) store_row<kRuns, kAligned>(p.x, row, hidden, x);
  if (p.out == nullptr) return;
  if constexpr (!kIsSmall) load_weights<kRuns, kAligned>(p.norm, hidden, norm);
  const RowNorm<true> out_norm(p.norm, p.norm_alpha, x, hidden, p.eps, scratch[1]);
#pragma unroll
  for (int r = 0; r < kRuns; ++r) {
    const int i = row_column(r);
    h[r] = out_norm.applied_to<kAligned>(unpack(x[r]), norm[r], i, hidden - i);
  }
  if constexpr (!kOnlyAdds) taps.at(kOutPoint, h);
  if constexpr (kForms == RowForms::kBoth) {
#pragma unroll
    for (int r = 0; r < kRuns; ++r) x[r] = pack(h[r]);
    store_row<kRuns, kAligned>(p.out_act, row, hidden, x);
  }
  if constexpr (kFp8) {
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      if (p.rounds) h[r] = rounded(h[r]);
    }
    store_row_fp8<kRuns, kAligned>(h, blockIdx.x, static_cast<int>(p.hidden), p.out, p.out_scale,
                                   scratch[2]);
  } else {
#pragma unroll
    for (int r = 0; r < kRuns; ++r) x[r] = pack(h[r]);
    store_row<kRuns, kAligned>(p.out, row, hidden, x);
  }
}

template <int kRuns, typename Kernel>
cudaError_t launch_kernel(Kernel kernel, const ResidualNormParams& p,
                          const TapParams<kResidualPoints>& taps, unsigned threads,
                          cudaStream_t stream) {
  const size_t bytes = tap_vector_bytes(kRuns, threads);
  const cudaError_t error = allow_shared(kernel, bytes);
  if (error != cudaSuccess) return error;
  return launch_pdl_in_front(kernel, dim3(static_cast<unsigned>(p.rows)), dim3(threads), bytes, 1,
                             p.lets_next_begin, stream, p, taps);
}

template <int kRuns, bool kAligned, int kMaxThreads, bool kOnlyAdds, bool kFew = false>
cudaError_t launch_shape(const ResidualNormParams& p, const TapParams<kResidualPoints>& taps,
                         unsigned threads, cudaStream_t stream) {
  constexpr RowForms kFp8 = RowForms::kFp8;
  constexpr RowForms kBf16 = RowForms::kBf16;
  const auto kernel =
      p.out_scale != nullptr
          ? tapped_residual_norm_kernel<kRuns, kAligned, kFp8, kMaxThreads, kOnlyAdds, kFew>
          : tapped_residual_norm_kernel<kRuns, kAligned, kBf16, kMaxThreads, kOnlyAdds, kFew>;
  return launch_kernel<kRuns>(kernel, p, taps, threads, stream);
}

template <int kRuns, bool kOnlyAdds>
cudaError_t launch_aligned(const ResidualNormParams& p, const TapParams<kResidualPoints>& taps,
                           unsigned threads, cudaStream_t stream) {
  if constexpr (kRuns == 1) {
    if constexpr (!kOnlyAdds) {
      constexpr int kFewRows = 64;
      if (p.rows <= kFewRows) {
        return launch_shape<kRuns, true, kSmallBlock, false, true>(p, taps, threads, stream);
      }
    }
    return launch_shape<kRuns, true, kSmallBlock, kOnlyAdds>(p, taps, threads, stream);
  } else {
    return threads <= kLargeBlock
               ? launch_shape<kRuns, true, kLargeBlock, kOnlyAdds>(p, taps, threads, stream)
               : launch_shape<kRuns, true, kMaxRowThreads, kOnlyAdds>(p, taps, threads, stream);
  }
}

}  // namespace

cudaError_t launch_tapped_residual_norm(const ResidualNormParams& p,
                                        const TapParams<kResidualPoints>& asked,
                                        cudaStream_t stream) {
  if (p.rows == 0 || p.hidden == 0) return cudaSuccess;
  TapParams<kResidualPoints> taps = asked;
  if (p.delta == nullptr) taps.point[kDeltaPoint] = -1;  // a look-up is of points that are passed
  if (p.out == nullptr) taps.point[kOutPoint] = -1;
  if (!are_tables_aligned(taps) || (p.delta_scales.row != nullptr && p.out_scale == nullptr) ||
      (p.out_act != nullptr && p.out_scale == nullptr)) {
    return cudaErrorInvalidValue;
  }
  if (taps.batch.only_adds) taps.point[kDeltaPoint] = taps.point[kOutPoint] = -1;
  const bool aligned = is_aligned_residual(p) && are_rows_aligned(taps.table);
  if (p.hidden > kMaxNormWidth && aligned) {  // behind an encode of mlp_act; all streams of a row
    constexpr int kRuns = 4;
    const auto threads =
        static_cast<unsigned>((p.hidden / kRun + kRuns * 32 - 1) / (kRuns * 32) * 32);
    if (p.hidden > kMaxTappedRow) return cudaErrorInvalidValue;
    return launch_shape<kRuns, true, kMaxRowThreads, false>(p, taps, threads, stream);
  }
  return for_row_shape<2>(p.hidden, aligned, [&](auto shape, unsigned threads) {
    using Shape = decltype(shape);
    constexpr int kRuns = Shape::kRuns;
    if (p.out_act != nullptr) {  // one kernel for all, as without taps
      return launch_kernel<kRuns>(
          tapped_residual_norm_kernel<kRuns, Shape::kAligned, RowForms::kBoth, kMaxRowThreads,
                                      false, false>,
          p, taps, threads, stream);
    }
    if constexpr (!Shape::kAligned) {
      return launch_shape<kRuns, false, kMaxRowThreads, false>(p, taps, threads, stream);
    } else {
      return taps.batch.only_adds ? launch_aligned<kRuns, true>(p, taps, threads, stream)
                                  : launch_aligned<kRuns, false>(p, taps, threads, stream);
    }
  });
}

}  // namespace rudder::cuda
