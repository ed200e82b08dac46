#include "rudder/cuda/kernels/device_vec.cuh"
#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/peers/peer.cuh"

namespace rudder::cuda {
namespace {

constexpr int64_t kPieceUnits = int64_t{kPeerThreads} * kPeerRuns;
constexpr int64_t kMaxUnits = (int64_t{1} << 31) - 1;
constexpr uint32_t kGatherOp = 3;

// Positions are numbered as if every rank had as many columns as the first.
struct GatherKernelParams {
  PeerGatherParams gather;
  int32_t row_units = 0;  // of the first rank's part
  int64_t units = 0;      // of all rows
  int64_t units_per_block = 0;
  uint32_t tag = 0;
};

// What is copied at a time: four numbers, or one where rows are not aligned.
template <bool kAligned>
struct GatherUnit {
  using Type = float4;
  static constexpr int kSize = 4;
};
template <>
struct GatherUnit<false> {
  using Type = float;
  static constexpr int kSize = 1;
};

template <bool kAligned>
class GatherRows {
 public:
  using Unit = typename GatherUnit<kAligned>::Type;
  static constexpr int kSize = GatherUnit<kAligned>::kSize;

  __device__ explicit GatherRows(const GatherKernelParams& p) : p_(p) {}

  __device__ int width(int rank) const { return p_.gather.begin[rank + 1] - p_.gather.begin[rank]; }
  // Where unit `unit` is in the part of `rank`; less than 0: the part ends before it.
  __device__ int64_t in_part(int rank, int64_t unit) const {
    const int row = row_of(unit);
    const int column = column_of(unit, row);
    return column < width(rank) ? int64_t{row} * width(rank) + column : -1;
  }
  __device__ void store(int rank, int64_t unit, const Unit& value) const {
    const int row = row_of(unit);
    const int column = column_of(unit, row);
    if (column >= width(rank)) return;
    const int64_t total = p_.gather.begin[p_.gather.links.count];
    *reinterpret_cast<Unit*>(p_.gather.out + row * total + p_.gather.begin[rank] + column) = value;
  }

 private:
  __device__ int row_of(int64_t unit) const { return static_cast<int>(unit) / p_.row_units; }
  __device__ int column_of(int64_t unit, int row) const {
    return (static_cast<int>(unit) - row * p_.row_units) * kSize;
  }

  const GatherKernelParams& p_;
};

template <bool kAligned>
__global__ void __launch_bounds__(kPeerThreads) gather_kernel(const GatherKernelParams p) {
  dependency_wait();
  dependency_trigger();
  using Rows = GatherRows<kAligned>;
  using Unit = typename Rows::Unit;
  const Rows rows(p);
  const PeerLinks& links = p.gather.links;
  const int64_t first = int64_t{blockIdx.x} * p.units_per_block;
  const int64_t end = min(first + p.units_per_block, p.units);
  const int thread = static_cast<int>(threadIdx.x);
  const auto slot = [&](const PeerBlock& block, int to, int from) {
    return reinterpret_cast<Unit*>(block.slot(to, from));
  };
  PeerBlock block(links, p.tag);
  for (int64_t begin = first; begin < end; begin += kPieceUnits) {
    if (links.is_open) block.next();
#pragma unroll
    for (int r = 0; r < kPeerRuns; ++r) {
      const int64_t at = r * kPeerThreads + thread;
      const int64_t from = begin + at < end ? rows.in_part(links.rank, begin + at) : -1;
      if (from < 0) continue;
      const Unit mine = *reinterpret_cast<const Unit*>(p.gather.part + from);
      rows.store(links.rank, begin + at, mine);
      if (!links.is_open) continue;
      for (int i = 0; i < links.count; ++i) {
        if (i != links.rank) slot(block, i, links.rank)[at] = mine;
      }
    }
    if (!links.is_open) continue;
    block.exchange(0);
    for (int i = 0; i < links.count; ++i) {
      if (i == links.rank) continue;
#pragma unroll
      for (int r = 0; r < kPeerRuns; ++r) {
        const int64_t at = r * kPeerThreads + thread;
        if (begin + at < end) {
          rows.store(i, begin + at, __ldcg(slot(block, links.rank, i) + at));
        }
      }
    }
  }
  if (thread == 0) block.end();
}

}  // namespace

cudaError_t launch_peer_gather(const PeerGatherParams& p, cudaStream_t stream) {
  if (p.rows == 0 || p.begin[1] == p.begin[0]) return cudaSuccess;
  if (!is_aligned(p.part) || !is_aligned(p.out)) return cudaErrorInvalidValue;
  bool aligned = true;  // rows: on all ranks alike
  for (int i = 1; i <= p.links.count; ++i) aligned = aligned && p.begin[i] % 4 == 0;
  GatherKernelParams params;
  params.gather = p;
  params.row_units = (p.begin[1] - p.begin[0]) / (aligned ? 4 : 1);
  params.units = p.rows * params.row_units;
  if (params.units > kMaxUnits) return cudaErrorInvalidValue;
  const PeerGrid grid = peer_grid(p.links, params.units, kPeerBlocks);
  params.units_per_block = grid.runs_per_block;
  params.tag = peer_tag(kGatherOp, p.rows, p.begin[p.links.count]);
  const auto kernel = aligned ? gather_kernel<true> : gather_kernel<false>;
  return launch_pdl(kernel, dim3(grid.blocks), dim3(kPeerThreads), 0, stream, params);
}

}  // namespace rudder::cuda
