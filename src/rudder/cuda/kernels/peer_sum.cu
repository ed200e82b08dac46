#include "rudder/cuda/kernels/device_vec.cuh"
#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/peer.cuh"
#include "rudder/cuda/kernels/product_scales.cuh"

namespace rudder::cuda {
namespace {

constexpr int64_t kPieceRuns = int64_t{kPeerThreads} * kPeerRuns;
constexpr int64_t kMaxRuns = (int64_t{1} << 31) - 1;
constexpr uint32_t kOneShotOp = 1;
constexpr uint32_t kTwoShotOp = 2;

struct SumKernelParams {
  PeerSumParams sum;
  int64_t count = 0;  // elements
  int64_t runs = 0;
  int64_t runs_per_block = 0;
  uint32_t tag = 0;
};

__device__ bool is_whole(const SumKernelParams& p, int64_t run) {
  return (run + 1) * kRun <= p.count;
}

// This rank's numbers: scaled, rounded as the product's own epilogue would.
__device__ Packed load_mine(const SumKernelParams& p, int64_t run) {
  const Bf16* const from = static_cast<const Bf16*>(p.sum.y) + run * kRun;
  const int left = static_cast<int>(is_whole(p, run) ? kRun : p.count - run * kRun);
  const Packed stored = left == kRun ? load_run<true>(from, left) : load_run<false>(from, left);
  if (p.sum.scales.row == nullptr) return stored;
  const int runs_of_row = static_cast<int>(p.sum.cols) / kRun;
  const int row = static_cast<int>(run) / runs_of_row;
  const int column = (static_cast<int>(run) - row * runs_of_row) * kRun;
  return pack(load_scales<true>(p.sum.scales, row, column, kRun).applied_to(unpack(stored)));
}

__device__ void store_sum(const SumKernelParams& p, int64_t run, const Packed& sum) {
  Bf16* const to = static_cast<Bf16*>(p.sum.y) + run * kRun;
  if (is_whole(p, run)) {
    store_run<true>(to, kRun, sum);
  } else {
    store_run<false>(to, static_cast<int>(p.count - run * kRun), sum);
  }
}

// Every thread reads what itself will write, and peers read none of y.
template <int kCount>
__global__ void __launch_bounds__(kPeerThreads) one_shot_kernel(const SumKernelParams p) {
  dependency_wait();
  dependency_trigger();
  const PeerLinks& links = p.sum.links;
  const int64_t first = int64_t{blockIdx.x} * p.runs_per_block;
  const int64_t end = min(first + p.runs_per_block, p.runs);
  const int thread = static_cast<int>(threadIdx.x);
  PeerBlock block(links, p.tag);
  for (int64_t begin = first; begin < end; begin += kPieceRuns) {
    block.next();
    Packed mine[kPeerRuns];
#pragma unroll
    for (int r = 0; r < kPeerRuns; ++r) {
      const int64_t at = r * kPeerThreads + thread;
      if (begin + at >= end) continue;
      mine[r] = load_mine(p, begin + at);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (i != links.rank) block.slot(i, links.rank)[at] = bits_of(mine[r]);
      }
    }
    block.exchange(0);
#pragma unroll
    for (int r = 0; r < kPeerRuns; ++r) {
      const int64_t at = r * kPeerThreads + thread;
      if (begin + at >= end) continue;
      store_sum(p, begin + at, sum_of<kCount>(block, links, mine[r], at));
    }
  }
  block.end();
}

// Rank i adds the i-th of `count` equal parts of a piece. Sums lie in the second half of a slot.
template <int kCount>
__global__ void __launch_bounds__(kPeerThreads) two_shot_kernel(const SumKernelParams p) {
  dependency_wait();
  dependency_trigger();
  constexpr int kSums = kPieceRuns / 2;
  const PeerLinks& links = p.sum.links;
  const int64_t first = int64_t{blockIdx.x} * p.runs_per_block;
  const int64_t end = min(first + p.runs_per_block, p.runs);
  PeerBlock block(links, p.tag);
  for (int64_t begin = first; begin < end; begin += kPieceRuns) {
    block.next();
    const int length = static_cast<int>(min(end - begin, kPieceRuns));
    const int each = (length + kCount - 1) / kCount;
    for (int at = static_cast<int>(threadIdx.x); at < length; at += kPeerThreads) {
      const int owner = at / each;
      if (owner == links.rank) continue;
      block.slot(owner, links.rank)[at - owner * each] = bits_of(load_mine(p, begin + at));
    }
    block.exchange(0);
    const int own_begin = links.rank * each;
    const int own_end = min(own_begin + each, length);
    for (int at = own_begin + static_cast<int>(threadIdx.x); at < own_end; at += kPeerThreads) {
      const Packed sum = sum_of<kCount>(block, links, load_mine(p, begin + at), at - own_begin);
      store_sum(p, begin + at, sum);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (i != links.rank) block.slot(i, links.rank)[kSums + at - own_begin] = bits_of(sum);
      }
    }
    block.exchange(1);
    for (int at = static_cast<int>(threadIdx.x); at < length; at += kPeerThreads) {
      const int owner = at / each;
      if (owner == links.rank) continue;
      const uint4 sum = __ldcg(block.slot(links.rank, owner) + kSums + at - owner * each);
      store_sum(p, begin + at, packed_of(sum));
    }
  }
  block.end();
}

// Of a rank that does without its peers: its own numbers, scaled.
__global__ void __launch_bounds__(kPeerThreads) own_sum_kernel(const SumKernelParams p) {
  dependency_wait();
  dependency_trigger();
  const int64_t step = int64_t{gridDim.x} * kPeerThreads;
  for (int64_t run = int64_t{blockIdx.x} * kPeerThreads + threadIdx.x; run < p.runs; run += step) {
    store_sum(p, run, load_mine(p, run));
  }
}

using SumKernel = void (*)(SumKernelParams);
SumKernel kernel_of(const PeerSumParams& p) {
  if (!p.links.is_open) return own_sum_kernel;
  switch (p.links.count) {
    case 2:
      return p.is_two_shot ? two_shot_kernel<2> : one_shot_kernel<2>;
    case 4:
      return p.is_two_shot ? two_shot_kernel<4> : one_shot_kernel<4>;
    case 8:
      return p.is_two_shot ? two_shot_kernel<8> : one_shot_kernel<8>;
    default:
      return nullptr;
  }
}

}  // namespace

cudaError_t launch_peer_sum(const PeerSumParams& p, cudaStream_t stream) {
  SumKernelParams params;
  params.sum = p;
  params.count = p.rows * p.cols;
  if (params.count == 0) return cudaSuccess;
  const bool has_scales = p.scales.row != nullptr;
  const SumKernel kernel = kernel_of(p);
  if (kernel == nullptr || !is_aligned(p.y) || !is_aligned(p.scales.column) ||
      !is_aligned(p.scales.bias) || (has_scales && !takes_scales(p)) || p.max_blocks < 1 ||
      p.max_blocks > kPeerBlocks) {
    return cudaErrorInvalidValue;
  }
  params.runs = (params.count + kRun - 1) / kRun;
  if (params.runs > kMaxRuns) return cudaErrorInvalidValue;
  const PeerGrid grid = peer_grid(params.runs, p.max_blocks);
  params.runs_per_block = grid.runs_per_block;
  params.tag = peer_tag(p.is_two_shot ? kTwoShotOp : kOneShotOp, p.rows, p.cols);
  return launch_pdl(kernel, dim3(grid.blocks), dim3(kPeerThreads), 0, stream, params);
}

}  // namespace rudder::cuda
