// The gated activation with taps (tapped_rows.h). A cluster has a row in its registers, a run a
// thread, as gated_act.cu has for fp8: a program's sums are over the cluster, and a row without one
// needs no exchange that its way out does not need. Rows of bf16 are spread over the same blocks.
#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/rows/gated_act.cuh"
#include "rudder/cuda/kernels/taps/tapped_rows.h"
#include "rudder/cuda/kernels/taps/taps.cuh"

namespace rudder::cuda {
namespace {

// A row is one cluster's: thread t of block b has the run b * threads + t of it.
class ClusterTeam {
 public:
  static constexpr bool kAsksAhead = false;  // as of BlockTeam

  // What the warps and the blocks tell each other, for two sums in turn: who writes a address again
  // has passed the exchange in between, which all reach after they have read it.
  struct Shared {
    TapSums of_warp[2][32];
    float of_block[2][kMaxCluster][4];  // zeros past the cluster's size
    uint64_t told[2];
  };
  static_assert(sizeof(TapSums) == 4 * sizeof(float));

  __device__ explicit ClusterTeam(Shared& shared) : shared_(shared) {}

  // Before cluster_arrive().
  __device__ void init() {
    for (unsigned i = threadIdx.x; i < 2 * kMaxCluster * 4; i += blockDim.x) {
      (&shared_.of_block[0][0][0])[i] = 0.0f;
    }
    if (threadIdx.x == 0) {
      for (uint64_t& barrier : shared_.told) barrier_init(shared_address(&barrier), 1);
      barrier_init_fence();
    }
    __syncthreads();
  }

  __device__ static int first_column() {
    return static_cast<int>(cluster_rank() * blockDim.x + threadIdx.x) * kRun;
  }
  __device__ static int column_stride() { return 0; }
  __device__ bool is_leader() const { return cluster_rank() == 0 && threadIdx.x == 0; }

  // Over all threads of the cluster, to every thread, in an order that their number alone decides.
  __device__ TapSums sum(TapSums sums, const WantedTapSums& wanted) {
    const unsigned n = n_++;
    const unsigned lane = threadIdx.x % 32;
    sums = wanted.warp_sums(sums);
    TapSums* const of_warp = shared_.of_warp[n % 2];
    if (lane == 0) of_warp[threadIdx.x / 32] = sums;
    __syncthreads();
    const uint32_t told = shared_address(&shared_.told[n % 2]);
    if (threadIdx.x < 32) {
      const uint32_t ranks = cluster_size();
      if (lane == 0) barrier_expect(told, ranks * static_cast<uint32_t>(sizeof(TapSums)));
      sums = wanted.warp_sums(lane < blockDim.x / 32 ? of_warp[lane] : TapSums{});
      // Four lanes a block, one sum each.
      const uint32_t rank = lane / 4;
      const uint32_t part = lane % 4;
      const float value = part == 0   ? sums.p
                          : part == 1 ? sums.p2
                          : part == 2 ? sums.gate
                                      : sums.squares;
      const uint32_t address = shared_address(&shared_.of_block[n % 2][cluster_rank()][part]);
      if (rank < ranks) {
        store_to_rank(shared_of_rank(address, rank), value, shared_of_rank(told, rank));
      }
    }
    barrier_wait(told, n / 2 % 2);
    TapSums all = {};
#pragma unroll
    for (int rank = 0; rank < kMaxCluster; ++rank) {
      const auto& of_block = shared_.of_block[n % 2][rank];
      all.p += of_block[0];
      all.p2 += of_block[1];
      all.gate += of_block[2];
      all.squares += of_block[3];
    }
    return all;
  }

  // As of BlockTeam.
  __device__ static bool is_first_block() {
    return cluster_rank() == 0;
  }
  __device__ static void wait_for_all() {
    cluster_barrier();
  }
  __device__ static float over_blocks(const float* part) {
    const uint32_t address = shared_address(part);
    float sum = 0.0f;
    for (uint32_t rank = 0; rank < cluster_size(); ++rank) {
      sum += load_from_rank(shared_of_rank(address, rank));
    }
    return sum;
  }

 private:
  Shared& shared_;
  unsigned n_ = 0;
};
static_assert(kMaxCluster * 4 == 32);

// Into bf16 rows may be wider: blocks of more threads.
template <bool kFp8>
constexpr int kMaxThreads = kFp8 ? kMaxGatedThreads : 896;
static_assert(int64_t{kMaxCluster} * kMaxThreads<false> * kRun >= kMaxTappedWidth);

// Of a thread: two blocks of 320 threads on a multiprocessor, or one of the largest.
template <bool kFp8>
constexpr int kRegisters = kFp8 ? 96 : 72;
static_assert(kMaxThreads<true> * kRegisters<true> <= 65536);
static_assert(kMaxThreads<false> * kRegisters<false> <= 65536);

template <bool kAligned, bool kFp8, bool kScaled>
__global__ void __maxnreg__(kRegisters<kFp8>)
    tapped_gated_act_kernel(const __grid_constant__ GatedActParams p,
                            const __grid_constant__ TapParams<1> tap_params) {
  using Taps = TokenTaps<ClusterTeam, 1, 1, kAligned, false>;
  extern __shared__ float4 fetched[];
  __shared__ alignas(16) HighestShared highest;
  __shared__ alignas(16) ClusterTeam::Shared team_shared;
  __shared__ FeatureShared features;
  const unsigned ranks = cluster_size();
  const auto rows = static_cast<unsigned>(p.rows);
  const unsigned stride = gridDim.x / ranks;
  unsigned row = blockIdx.x / ranks;
  ClusterTeam team(team_shared);
  Taps taps(tap_params, team, features, fetched, p.width);
  taps.load(row);
  const int i = team.first_column();
  const int left = static_cast<int>(p.width) - i;
  if constexpr (kFp8) init_highest(highest);
  team.init();
  cluster_arrive();
  if (p.lets_next_begin) dependency_trigger();
  dependency_wait();
  dependency_trigger();
  GatedRun run = load_gated<kAligned>(p, row, i);
  cluster_wait();
  // A row as it leaves, and on its way the one after it.
  const auto work_out = [&](unsigned at) {
    GatedScales scales = {};
    if constexpr (kScaled) {
      scales.gate = load_floats<kAligned>(p.x_scales.column + i, left);
      scales.up = load_floats<kAligned>(p.x_scales.column + p.width + i, left);
    }
    Floats y[1] = {gated<kScaled>(run, scales, p.activation)};
    const unsigned next = at + stride;
    if (next < rows) run = load_gated<kAligned>(p, next, i);
    taps.look_up(static_cast<int>(at));
    taps.at(0, y);
    if (p.rounds) y[0] = rounded(y[0]);
    if (next < rows) taps.load(next);
    return y[0];
  };
  if constexpr (kFp8) {
    store_gated_fp8<kAligned>(p, row, stride, i, highest, work_out);
  } else {
    for (; row < rows; row += stride) {
      store_run<kAligned>(static_cast<Bf16*>(p.out) + int64_t{row} * p.width + i, left,
                          pack(work_out(row)));
    }
  }
}

template <bool kFp8, bool kScaled>
cudaError_t launch_kind(const GatedActParams& p, const TapParams<1>& taps, bool aligned,
                        cudaStream_t stream) {
  const auto kernel = aligned ? tapped_gated_act_kernel<true, kFp8, kScaled>
                              : tapped_gated_act_kernel<false, kFp8, kScaled>;
  const GatedGrid grid = gated_grid(p, [](int64_t threads) {
    const int64_t blocks = 65536 / (kRegisters<kFp8> * threads);
    return blocks > 1 ? blocks : 1;
  });
  const size_t bytes = tap_vector_bytes(1, grid.threads);
  const cudaError_t error = allow_shared(kernel, bytes);
  if (error != cudaSuccess) return error;
  return launch_pdl_in_front(kernel, dim3(grid.clusters * grid.cluster), dim3(grid.threads), bytes,
                             grid.cluster, p.lets_next_begin, stream, p, taps);
}

}  // namespace

cudaError_t launch_tapped_gated_act(const GatedActParams& p, const TapParams<1>& taps,
                                    cudaStream_t stream) {
  if (p.rows == 0 || p.width == 0) return cudaSuccess;
  const bool is_fp8 = p.out_scale != nullptr;
  const bool is_scaled = p.x_scales.row != nullptr;
  if (p.width > (is_fp8 ? kMaxQuantisedWidth : kMaxTappedWidth) ||
      (is_scaled && !takes_scales(p)) || !are_tables_aligned(taps)) {
    return cudaErrorInvalidValue;
  }
  const bool aligned = p.width % kRun == 0 && is_aligned(p.x) && is_aligned(p.out) &&
                       is_aligned(p.x_scales.column) && are_rows_aligned(taps.table);
  if (!is_fp8) return launch_kind<false, false>(p, taps, aligned, stream);
  return is_scaled ? launch_kind<true, true>(p, taps, aligned, stream)
                   : launch_kind<true, false>(p, taps, aligned, stream);
}

}  // namespace rudder::cuda
