#include "rudder/cuda/kernels/peer_residual.h"

#include <algorithm>

#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/peer.cuh"
#include "rudder/cuda/kernels/row_team.cuh"

namespace rudder::cuda {
namespace {

constexpr uint32_t kFirstResidualOp = 4;                              // and one for each PeerWay
constexpr int kMostRuns = 2;                                          // of a row, that a thread has
constexpr int kStampedThreads = 256;                                  // of a block
static_assert(kMostRuns * kPeerThreads * 16 <= kPeerPieceBytes / 2);  // the other half has sums
static_assert(kMostRuns * kStampedThreads * 32 <= kStampedPieceBytes);

template <int kCount>
constexpr int64_t kInboxBytes = peer_inbox_bytes(kCount);  // the stamped inbox is behind it

// What the kernel writes: the sum alone, or a normed row.
enum class RowOut { kSum, kBf16, kFp8 };

struct ResidualKernelParams {
  PeerResidualParams asked;
  int32_t row_threads = 0;
  uint32_t tag = 0;
};

// 16 bytes of a run's 32 on the wire: each word is its number, then the stamp. Words are whole:
// what is read is of one store.
struct StampedHalf {
  uint64_t word[2];
};
__device__ void store_stamped(StampedHalf* to, uint32_t first, uint32_t second, uint32_t stamp) {
  const uint64_t high = uint64_t{stamp} << 32;
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(high | first),
               "l"(high | second)
               : "memory");
}
__device__ StampedHalf load_stamped(const StampedHalf* from) {
  StampedHalf half;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(half.word[0]), "=l"(half.word[1])
               : "l"(from)
               : "memory");
  return half;
}
__device__ bool has_stamp(const StampedHalf& half, uint32_t stamp) {
  return static_cast<uint32_t>(half.word[0] >> 32) == stamp &&
         static_cast<uint32_t>(half.word[1] >> 32) == stamp;
}

__device__ uint4 bits_of(const StampedHalf (&halves)[2]) {
  return make_uint4(
      static_cast<uint32_t>(halves[0].word[0]), static_cast<uint32_t>(halves[0].word[1]),
      static_cast<uint32_t>(halves[1].word[0]), static_cast<uint32_t>(halves[1].word[1]));
}

// The exchanges of one block, of zeros where a thread has no run: what its threads have of a row
// becomes the ranks' sums of that.
template <PeerWay kWay, int kCount, int kRuns>
class RunSums {
 public:
  __device__ RunSums(const PeerLinks& links, uint32_t tag, int& has_given_up)
      : links_(links), block_(links, tag), has_given_up_(has_given_up) {}

  __device__ void sum(Packed (&runs)[kRuns]) {
    block_.next();
    if constexpr (kWay == PeerWay::kStamped) {
      sum_stamped(runs);
    } else if constexpr (kWay == PeerWay::kOneShot) {
      sum_in_one_shot(runs);
    } else {
      sum_in_two_shots(runs);
    }
  }
  __device__ void end() const {
    // By now every thread has read the count of exchanges: a wait for flags is a barrier.
    if constexpr (kWay == PeerWay::kStamped) __syncthreads();
    block_.end();
  }

 private:
  static constexpr int kOthers = kCount - 1;

  __device__ static int place(int run) {
    return run * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
  }

  __device__ void sum_in_one_shot(Packed (&runs)[kRuns]) const {
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
#pragma unroll
      for (int k = 0; k < kOthers; ++k) {
        block_.slot(other(k), links_.rank)[place(r)] = bits_of(runs[r]);
      }
    }
    block_.exchange(0);
#pragma unroll
    for (int r = 0; r < kRuns; ++r) runs[r] = sum_of<kCount>(block_, links_, runs[r], place(r));
  }

  // Rank i adds the i-th of kCount equal parts of the block's places; to itself a rank stores as to
  // others.
  __device__ void sum_in_two_shots(Packed (&runs)[kRuns]) const {
    constexpr int64_t kSums = kPeerPieceBytes / 16 / 2;  // sums lie in the second half of a slot
    const int each = kRuns * static_cast<int>(blockDim.x) / kCount;
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      const int owner = place(r) / each;
      block_.slot(owner, links_.rank)[place(r) - owner * each] = bits_of(runs[r]);
    }
    block_.exchange(0);
    for (int at = static_cast<int>(threadIdx.x); at < each; at += static_cast<int>(blockDim.x)) {
      uint4 parts[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) parts[i] = __ldcg(block_.slot(links_.rank, i) + at);
      const uint4 sum = bits_of(sum_in_order(parts));
#pragma unroll
      for (int i = 0; i < kCount; ++i) block_.slot(i, links_.rank)[kSums + at] = sum;
    }
    block_.exchange(1);
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      const int owner = place(r) / each;
      const uint4* const sums = block_.slot(links_.rank, owner) + kSums;
      runs[r] = packed_of(__ldcg(sums + place(r) - owner * each));
    }
  }

  // Half `half` of the thread's run r, as rank `from` sends it to rank `to`.
  __device__ StampedHalf* stamped(int to, int from, int r, int half) const {
    char* const inbox = links_.inbox[to] + kInboxBytes<kCount>;
    const int64_t piece = (int64_t{block_.epoch() & 1} * kCount + from) * kPeerBlocks + blockIdx.x;
    return reinterpret_cast<StampedHalf*>(inbox + piece * kStampedPieceBytes) +
           (2 * r + half) * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
  }

  // A thread reads what the same thread of each peer stores, and nobody else's. That a peer comes
  // with the same op its flag says, which nothing else waits for.
  __device__ void sum_stamped(Packed (&runs)[kRuns]) {
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      const uint4 bits = bits_of(runs[r]);
#pragma unroll
      for (int k = 0; k < kOthers; ++k) {
        store_stamped(stamped(other(k), links_.rank, r, 0), bits.x, bits.y, block_.epoch());
        store_stamped(stamped(other(k), links_.rank, r, 1), bits.z, bits.w, block_.epoch());
      }
    }
    const int peer = static_cast<int>(threadIdx.x);
    bool has_come = peer >= kCount || peer == links_.rank;
    if (!has_come) block_.announce(peer);
    StampedHalf halves[kRuns][kOthers][2];
    uint64_t begin = 0;
    while (true) {
      int late = read_stamped(halves);
      if (!has_come) has_come = block_.has_come(peer, 0);
      if (!has_come) late = peer;
      if (late < 0 || has_given_up()) break;
      if (block_.goes_on(begin, late)) continue;
      give_up();  // one look at the faults is enough for the block
      break;
    }
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      uint4 parts[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const uint4 before = bits_of(halves[r][i < kOthers ? i : kOthers - 1]);  // ranks below this
        const uint4 behind = bits_of(halves[r][i > 0 ? i - 1 : 0]);
        parts[i] = i < links_.rank ? before : i == links_.rank ? bits_of(runs[r]) : behind;
      }
      runs[r] = sum_in_order(parts);
    }
  }

  // A rank whose runs have not all come; less than 0: there is none.
  __device__ int read_stamped(StampedHalf (&halves)[kRuns][kOthers][2]) const {
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
#pragma unroll
      for (int k = 0; k < kOthers; ++k) {
        halves[r][k][0] = load_stamped(stamped(links_.rank, other(k), r, 0));
        halves[r][k][1] = load_stamped(stamped(links_.rank, other(k), r, 1));
      }
    }
    int late = -1;
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
#pragma unroll
      for (int k = 0; k < kOthers; ++k) {
        const bool is_there = has_stamp(halves[r][k][0], block_.epoch()) &&
                              has_stamp(halves[r][k][1], block_.epoch());
        if (!is_there) late = other(k);
      }
    }
    return late;
  }

  // The peers in the order of ranks.
  __device__ int other(int k) const {
    return k < links_.rank ? k : k + 1;
  }
  __device__ bool has_given_up() const {
    return *static_cast<volatile int*>(&has_given_up_) != 0;
  }
  __device__ void give_up() {
    *static_cast<volatile int*>(&has_given_up_) = 1;
  }

  const PeerLinks& links_;
  PeerBlock block_;
  int& has_given_up_;  // shared by the block's threads
};

// This rank's run, scaled, rounded as the product's own epilogue would.
__device__ Packed load_branch(const PeerResidualParams& p, int64_t row, int column, int left) {
  const auto* const from = static_cast<const Bf16*>(p.norm.delta) + row * p.norm.hidden + column;
  const Packed stored = load_run<true>(from, left);
  if (p.scales.row == nullptr || left <= 0) return stored;
  return pack(load_scales<true>(p.scales, row, column, left).applied_to(unpack(stored)));
}

// What does not change, while the kernel before this one ends.
template <int kRuns>
__device__ void prefetch_constants(const PeerResidualParams& p, const RowTeam& team, int width) {
#pragma unroll
  for (int r = 0; r < kRuns; ++r) {
    const int i = team.column(r, width);
    if (i >= width || threadIdx.x % 4 != 0) continue;  // a line is four threads' runs
    if (p.norm.delta_norm != nullptr) prefetch_to_l2(p.norm.delta_norm + i);
    if (p.scales.column != nullptr) prefetch_to_l2(p.scales.column + i);
  }
}

// The residual norm of rows.cu behind the sum: x as it was comes in, `branch` is the sum.
template <int kRuns, RowOut kOut>
__device__ void add_and_norm(const ResidualNormParams& p, RowTeam& team, int64_t row,
                             const Packed (&branch)[kRuns], const Floats (&weight)[kRuns],
                             Packed (&x)[kRuns]) {
  const int width = static_cast<int>(p.hidden);
  const int64_t begin = row * width;
  const RowNorm<false> branch_norm(p.delta_norm, nullptr, branch, width, p.delta_eps, team);
#pragma unroll
  for (int r = 0; r < kRuns; ++r) {
    const int i = team.column(r, width);
    Floats branch_weight = {};
    if (p.delta_norm != nullptr) branch_weight = load_floats<true>(p.delta_norm + i, width - i);
    Floats add = branch_norm.applied_to<true>(unpack(branch[r]), branch_weight, i, width - i);
    if (p.rounds) add = rounded(add);
    x[r] = pack(sum_run(unpack(x[r]), add));
    store_run<true>(static_cast<Bf16*>(p.x) + begin + i, width - i, x[r]);
  }
  if (p.out == nullptr) return;
  const RowNorm<false> norm(p.norm, nullptr, x, width, p.eps, team);
  Floats y[kRuns];
#pragma unroll
  for (int r = 0; r < kRuns; ++r) {
    const int i = team.column(r, width);
    y[r] = norm.applied_to<true>(unpack(x[r]), weight[r], i, width - i);
    if constexpr (kOut == RowOut::kBf16) {
      store_run<true>(static_cast<Bf16*>(p.out) + begin + i, width - i, pack(y[r]));
    } else if (p.rounds) {
      y[r] = rounded(y[r]);
    }
  }
  if constexpr (kOut == RowOut::kFp8) {
    const Fp8RowScale scale(team.max(highest_of(y)));
    if (team.is_leader()) p.out_scale[row] = scale.value();
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      const int i = team.column(r, width);
      store_run_fp8<true>(static_cast<uint8_t*>(p.out) + begin + i, width - i, scale.stored(y[r]));
    }
  }
}

template <PeerWay kWay>
constexpr int kMostThreads = kWay == PeerWay::kStamped ? kStampedThreads : kPeerThreads;

// Two blocks on a multiprocessor, so that kPeerBlocks fit on a GPU at once. A thread reads and
// writes the same elements of delta, x and out, so that delta may be an out of bf16.
template <PeerWay kWay, int kCount, int kRuns, RowOut kOut>
__global__ void __launch_bounds__(kMostThreads<kWay>, 2)
    summed_residual_norm_kernel(const __grid_constant__ ResidualKernelParams params) {
  __shared__ RowTeam::Shared team_shared;
  __shared__ int has_given_up;
  const PeerResidualParams& p = params.asked;
  const int width = static_cast<int>(p.norm.hidden);
  RowTeam team(team_shared, params.row_threads);
  if (threadIdx.x == 0) has_given_up = 0;
  team.begin();
  Floats weight[kRuns] = {};
  if (kOut != RowOut::kSum && p.norm.norm != nullptr) {
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      const int i = team.column(r, width);
      weight[r] = load_floats<true>(p.norm.norm + i, width - i);
    }
  }
  prefetch_constants<kRuns>(p, team, width);
  dependency_wait();
  dependency_trigger();
  RunSums<kWay, kCount, kRuns> sums(p.links, params.tag, has_given_up);
  const unsigned blocks = cluster_size();
  const int64_t step = gridDim.x / blocks;
  for (int64_t row = blockIdx.x / blocks; row < p.norm.rows; row += step) {
    Packed branch[kRuns];
    Packed x[kRuns] = {};
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      const int i = team.column(r, width);
      branch[r] = load_branch(p, row, i, width - i);
      if (kOut == RowOut::kSum) continue;
      x[r] = load_run<true>(static_cast<const Bf16*>(p.norm.x) + row * width + i, width - i);
    }
    sums.sum(branch);
    if constexpr (kOut == RowOut::kSum) {
#pragma unroll
      for (int r = 0; r < kRuns; ++r) {
        const int i = team.column(r, width);
        auto* const to = static_cast<Bf16*>(const_cast<void*>(p.norm.delta)) + row * width + i;
        store_run<true>(to, width - i, branch[r]);
      }
    } else {
      add_and_norm<kRuns, kOut>(p.norm, team, row, branch, weight, x);
    }
  }
  team.end();
  sums.end();
}

// How rows of `warps` warps are divided among blocks.
struct ResidualGrid {
  unsigned row_blocks = 1;
  unsigned threads = 0;  // of a block
  unsigned rows = 0;     // at once
};
ResidualGrid residual_grid(const PeerResidualParams& p, unsigned warps) {
  const unsigned most = p.way == PeerWay::kStamped ? kStampedThreads : kPeerThreads;
  ResidualGrid grid;
  const auto threads_of = [warps](unsigned blocks) { return (warps + blocks - 1) / blocks * 32; };
  const auto is_spare = [&](unsigned blocks) {
    return p.row_blocks != 0 ? blocks <= static_cast<unsigned>(p.row_blocks)
                             : blocks <= warps && p.norm.rows * blocks <= kPeerBlocks;
  };
  while (grid.row_blocks < RowTeam::kMaxBlocks &&
         (is_spare(2 * grid.row_blocks) || threads_of(grid.row_blocks) > most)) {
    grid.row_blocks *= 2;
  }
  grid.threads = threads_of(grid.row_blocks);
  grid.rows = static_cast<unsigned>(
      std::min<int64_t>(p.norm.rows, kPeerBlocks / static_cast<int64_t>(grid.row_blocks)));
  return grid;
}

template <PeerWay kWay, int kCount, int kRuns>
cudaError_t launch_shape(const PeerResidualParams& p, unsigned row_threads, cudaStream_t stream) {
  const ResidualGrid grid = residual_grid(p, row_threads / 32);
  ResidualKernelParams params;
  params.asked = p;
  params.row_threads = static_cast<int32_t>(row_threads);
  params.tag = peer_tag(kFirstResidualOp + static_cast<uint32_t>(kWay), p.norm.rows, p.norm.hidden);
  const auto kernel = p.only_sums ? summed_residual_norm_kernel<kWay, kCount, kRuns, RowOut::kSum>
                      : p.norm.out_scale != nullptr
                          ? summed_residual_norm_kernel<kWay, kCount, kRuns, RowOut::kFp8>
                          : summed_residual_norm_kernel<kWay, kCount, kRuns, RowOut::kBf16>;
  return launch_pdl_cluster(kernel, dim3(grid.rows * grid.row_blocks), dim3(grid.threads), 0,
                            grid.row_blocks, stream, params);
}

template <PeerWay kWay, int kCount>
cudaError_t launch_way(const PeerResidualParams& p, cudaStream_t stream) {
  return for_row_shape<kMostRuns>(p.norm.hidden, true, [&](auto shape, unsigned threads) {
    using Shape = decltype(shape);
    if constexpr (Shape::kAligned) {
      return launch_shape<kWay, kCount, Shape::kRuns>(p, threads, stream);
    } else {
      return cudaErrorInvalidValue;
    }
  });
}

}  // namespace

bool has_peer_residual(const PeerResidualParams& p) {
  return (p.links.count == 2 || p.links.count == 4) && !clips(p.norm) && p.norm.delta != nullptr &&
         p.norm.delta_scales.row == nullptr && p.norm.hidden <= kMaxNormWidth &&
         is_aligned_residual(p.norm) && is_aligned(p.scales.column) && is_aligned(p.scales.bias);
}

cudaError_t launch_peer_residual_norm(const PeerResidualParams& p, cudaStream_t stream) {
  if (p.norm.rows == 0 || p.norm.hidden == 0) return cudaSuccess;
  if (!has_peer_residual(p) || !p.links.is_open || p.row_blocks < 0 ||
      p.row_blocks > static_cast<int32_t>(RowTeam::kMaxBlocks) ||
      (p.row_blocks & (p.row_blocks - 1)) != 0) {
    return cudaErrorInvalidValue;
  }
  const bool is_pair = p.links.count == 2;
  switch (p.way) {
    case PeerWay::kStamped:
      return is_pair ? launch_way<PeerWay::kStamped, 2>(p, stream)
                     : launch_way<PeerWay::kStamped, 4>(p, stream);
    case PeerWay::kOneShot:
      return is_pair ? launch_way<PeerWay::kOneShot, 2>(p, stream)
                     : launch_way<PeerWay::kOneShot, 4>(p, stream);
    case PeerWay::kTwoShot:
      return is_pair ? launch_way<PeerWay::kTwoShot, 2>(p, stream)
                     : launch_way<PeerWay::kTwoShot, 4>(p, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace rudder::cuda
