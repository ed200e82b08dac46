// out = act(gate) * up (rows.h). For bf16 every run of 8 columns is independent. For fp8 the
// largest magnitude of the row is needed first: a cluster of blocks holds the row in registers, one
// run for each thread, and the blocks exchange their largest values. So one token is spread over as
// many multiprocessors as the cluster has blocks. A cluster then takes further rows: the scales of
// its columns stay in registers, and it computes the next row while the other blocks' values for
// this row arrive. Of many rows a block has each as a whole (gated_act_ahead.cu).
#include <algorithm>

#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/rows/gated_act.cuh"
#include "rudder/cuda/kernels/rows/rows_ahead.h"

namespace rudder::cuda {
namespace {

template <bool kAligned>
__global__ void __launch_bounds__(kFlatThreads) gated_act_kernel(const GatedActParams p) {
  if (p.lets_next_begin) dependency_trigger();
  dependency_wait();
  dependency_trigger();
  const int64_t row = blockIdx.x;
  const int i = flat_column();
  const int left = static_cast<int>(p.width) - i;
  if (left <= 0) return;
  store_run<kAligned>(static_cast<Bf16*>(p.out) + row * p.width + i, left,
                      pack(gated<false>(load_gated<kAligned>(p, row, i), {}, p.activation)));
}

template <bool kAligned, bool kScaled>
__global__ void __launch_bounds__(kMaxGatedThreads, 2)
    gated_act_fp8_kernel(const GatedActParams p) {
  __shared__ alignas(16) HighestShared shared;
  const unsigned ranks = cluster_size();
  const int i = static_cast<int>(cluster_rank() * blockDim.x + threadIdx.x) * kRun;
  const int left = static_cast<int>(p.width) - i;
  // Weights' scales do not change: they are fetched while the kernel before this one ends.
  GatedScales scales = {};
  if constexpr (kScaled) {
    scales.gate = load_floats<kAligned>(p.x_scales.column + i, left);
    scales.up = load_floats<kAligned>(p.x_scales.column + p.width + i, left);
  }
  init_highest(shared);
  cluster_arrive();
  if (p.lets_next_begin) dependency_trigger();
  dependency_wait();
  dependency_trigger();
  const unsigned row = blockIdx.x / ranks;
  const unsigned stride = gridDim.x / ranks;
  GatedRun run = load_gated<kAligned>(p, row, i);
  cluster_wait();
  store_gated_fp8<kAligned>(p, row, stride, i, shared, [&](unsigned at) {
    const Floats out = gated<kScaled>(run, scales, p.activation);
    if (at + stride < p.rows) run = load_gated<kAligned>(p, at + stride, i);
    return p.rounds ? rounded(out) : out;
  });
}

cudaError_t launch_gated_act_fp8(const GatedActParams& p, bool aligned, cudaStream_t stream) {
  const bool scaled = p.x_scales.row != nullptr;
  if (p.width > kMaxQuantisedWidth || (scaled && !takes_scales(p))) return cudaErrorInvalidValue;
  const GatedGrid grid = gated_grid(p, [](int64_t threads) {
    constexpr int64_t kThreadsPerSm = 960;  // that the registers are enough for, in whole blocks
    return std::max(int64_t{2}, kThreadsPerSm / threads);
  });
  const auto kernel =
      aligned ? (scaled ? gated_act_fp8_kernel<true, true> : gated_act_fp8_kernel<true, false>)
              : (scaled ? gated_act_fp8_kernel<false, true> : gated_act_fp8_kernel<false, false>);
  return launch_pdl_in_front(kernel, dim3(grid.clusters * grid.cluster), dim3(grid.threads), 0,
                             grid.cluster, p.lets_next_begin, stream, p);
}

}  // namespace

cudaError_t launch_gated_act(const GatedActParams& p, cudaStream_t stream) {
  if (p.rows == 0 || p.width == 0) return cudaSuccess;
  const bool aligned =
      p.width % kRun == 0 && is_aligned(p.x) && is_aligned(p.out) && is_aligned(p.x_scales.column);
  if (goes_ahead(p)) return launch_gated_act_ahead(p, stream);
  if (p.out_scale != nullptr) return launch_gated_act_fp8(p, aligned, stream);
  if (p.x_scales.row != nullptr) return cudaErrorInvalidValue;
  const auto kernel = aligned ? gated_act_kernel<true> : gated_act_kernel<false>;
  return launch_pdl_in_front(kernel, flat_grid(p.rows, p.width), dim3(kFlatThreads), 0, 1,
                             p.lets_next_begin, stream, p);
}

}  // namespace rudder::cuda
