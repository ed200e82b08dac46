#include "rudder/cuda/kernels/peers/peer_residual.h"

#include <algorithm>

#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/peers/peer.cuh"
#include "rudder/cuda/kernels/rows/row_team.cuh"

namespace rudder::cuda {
namespace {

constexpr uint32_t kFirstResidualOp = 4;  // and one for each PeerWay
constexpr int kMostRuns = 2;              // of a row, that a thread has
static_assert(kMostRuns * kPeerThreads * 16 <= kPeerWordsPieceBytes);

template <int kCount>
constexpr int64_t kInboxBytes = peer_inbox_bytes(kCount);  // the inbox of words is behind it

// What the kernel writes: the sum alone, or a normed row.
enum class RowOut { kSum, kBf16, kFp8 };

struct ResidualKernelParams {
  PeerResidualParams asked;
  int32_t row_threads = 0;
  uint32_t tag = 0;
};

// A run as two words of 8 bytes, each of which is stored and read whole.
struct RunWords {
  uint64_t word[2];
};
// A word that has not come: four NaNs. Where a run has them it is sent with others, which make the
// same sums.
constexpr int kNobody = -1;  // of ranks
constexpr uint64_t kNoWord = ~uint64_t{0};
constexpr uint64_t kOtherNans = 0x7fff7fff7fff7fff;

__device__ RunWords words_of(const Packed& run) {
  RunWords words;
  memcpy(&words, &run, sizeof(words));
  return words;
}
__device__ uint4 bits_of(const RunWords& words) {
  return make_uint4(
      static_cast<uint32_t>(words.word[0]), static_cast<uint32_t>(words.word[0] >> 32),
      static_cast<uint32_t>(words.word[1]), static_cast<uint32_t>(words.word[1] >> 32));
}
__device__ bool have_come(const RunWords& words) {
  return words.word[0] != kNoWord && words.word[1] != kNoWord;
}
__device__ void store_words(RunWords* to, const RunWords& words) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(words.word[0]),
               "l"(words.word[1])
               : "memory");
}
__device__ RunWords load_words(const RunWords* from) {
  RunWords words;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(words.word[0]), "=l"(words.word[1])
               : "l"(from)
               : "memory");
  return words;
}
__device__ void send_run(RunWords* to, const Packed& run) {
  RunWords words = words_of(run);
#pragma unroll
  for (uint64_t& word : words.word) word = word == kNoWord ? kOtherNans : word;
  store_words(to, words);
}

// The exchanges of one block, of zeros where a thread has no run: what its threads have of a row
// becomes the ranks' sums of that. Who reads a word waits until it is there, and leaves kNoWord in
// its place for the exchange after the next. By then a peer has heard of the next one, which this
// block begins when that has been stored: the next kernel's, or behind fence().
template <PeerWay kWay, int kCount, int kRuns>
class RunSums {
 public:
  __device__ RunSums(const PeerLinks& links, uint32_t tag, int& has_given_up)
      : links_(links), block_(links, tag), has_given_up_(has_given_up) {}

  __device__ void sum(Packed (&runs)[kRuns]) {
    block_.next();
    // That a peer comes with the same op its flag says, which nothing else waits for.
    const int peer = static_cast<int>(threadIdx.x);
    has_met_ = peer >= kCount || peer == links_.rank;
    if constexpr (kWay == PeerWay::kOneShot) {
      sum_in_one_shot(runs);
    } else {
      sum_in_two_shots(runs);
    }
  }
  // Between two exchanges of one kernel.
  __device__ static void fence() {
    __threadfence();
    __syncthreads();
  }
  __device__ void end() const {
    __syncthreads();  // every thread has read the count of exchanges
    if (threadIdx.x == 0) block_.end();
  }

 private:
  __device__ static int place(int run) {
    return run * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
  }
  // Where rank `from` stores for rank `to`.
  __device__ RunWords* slot(int to, int from) const {
    const uint32_t half = block_.epoch() & 1;
    const uint32_t piece = (half * kCount + static_cast<uint32_t>(from)) * kPeerBlocks + blockIdx.x;
    return reinterpret_cast<RunWords*>(links_.inbox[to] + kInboxBytes<kCount> +
                                       piece * static_cast<uint32_t>(kPeerWordsPieceBytes));
  }

  __device__ void sum_in_one_shot(Packed (&runs)[kRuns]) {
    RunWords words[kRuns * kCount];
#pragma unroll
    for (int n = 0; n < kRuns * kCount; ++n) {
      const Packed& mine = runs[n / kCount];
      words[n] = words_of(mine);
      if (n % kCount == links_.rank) continue;
      send_run(slot(n % kCount, links_.rank) + place(n / kCount), mine);
    }
    announce();
    take(
        words, links_.rank, [](int n) { return n % kCount; },
        [&](int n) { return slot(links_.rank, n % kCount) + place(n / kCount); });
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      uint4 parts[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) parts[i] = bits_of(words[r * kCount + i]);
      runs[r] = sum_in_order(parts);
    }
  }

  // Of each run of a warp, rank i adds what the i-th of kCount equal parts of the lanes have; to
  // itself a rank sends as to others. So each store goes to all ranks alike, and no warp waits for
  // another. Sums lie in the second half of a slot.
  __device__ void sum_in_two_shots(Packed (&runs)[kRuns]) {
    constexpr int64_t kSums = kPeerWordsPieceBytes / 16 / 2;
    constexpr int64_t kBetweenRanks = kPeerBlocks * kPeerWordsPieceBytes / 16;
    constexpr int kLanes = 32 / kCount;
    constexpr int kAdded = kRuns * kLanes;  // by a warp
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int begin = static_cast<int>(threadIdx.x) / 32 * kAdded;
    const int owner = lane / kLanes;
    const int at = begin + lane % kLanes;
    RunWords* const to = slot(owner, links_.rank) + at;
#pragma unroll
    for (int r = 0; r < kRuns; ++r) send_run(to + r * kLanes, runs[r]);
    announce();
    if (lane < kAdded) {
      RunWords words[kCount];
      RunWords* const from = slot(links_.rank, 0) + begin + lane;
      take(
          words, kNobody, [](int i) { return i; }, [&](int i) { return from + i * kBetweenRanks; });
      uint4 parts[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) parts[i] = bits_of(words[i]);
      const Packed sum = sum_in_order(parts);
#pragma unroll
      for (int i = 0; i < kCount; ++i) send_run(slot(i, links_.rank) + kSums + begin + lane, sum);
    }
    __syncwarp();  // nobody waits for a sum that a thread of its warp has still to make
    RunWords sums[kRuns];
    RunWords* const from = slot(links_.rank, owner) + kSums + at;
    take(
        sums, kNobody, [&](int) { return owner; }, [&](int r) { return from + r * kLanes; });
#pragma unroll
    for (int r = 0; r < kRuns; ++r) runs[r] = packed_of(bits_of(sums[r]));
  }

  __device__ void announce() const {
    if (!has_met_) block_.announce(static_cast<int>(threadIdx.x));
  }

  // The n-th run becomes what rank rank_of(n) sends to place_of(n), but for those of rank `but`.
  template <int kNum, typename RankOf, typename PlaceOf>
  __device__ void take(RunWords (&runs)[kNum], int but, RankOf rank_of, PlaceOf place_of) {
    const int peer = static_cast<int>(threadIdx.x);
    uint64_t begin = 0;
    while (true) {
      const uint64_t heard = has_met_ ? 0 : block_.heard_of(peer);  // comes with the words
#pragma unroll
      for (int n = 0; n < kNum; ++n) {
        if (rank_of(n) != but) runs[n] = load_words(place_of(n));
      }
      int late = kNobody;
#pragma unroll
      for (int n = 0; n < kNum; ++n) {
        if (rank_of(n) != but && !have_come(runs[n])) late = rank_of(n);
      }
      if (!has_met_) has_met_ = block_.has_come(peer, heard);
      if (!has_met_) late = peer;
      if (late == kNobody || has_given_up()) break;
      if (block_.goes_on(begin, late)) continue;
      give_up();  // one look at the faults is enough for the block
      break;
    }
#pragma unroll
    for (int n = 0; n < kNum; ++n) {
      if (rank_of(n) != but) store_words(place_of(n), {{kNoWord, kNoWord}});
    }
  }

  __device__ bool has_given_up() const {
    return *static_cast<volatile int*>(&has_given_up_) != 0;
  }
  __device__ void give_up() {
    *static_cast<volatile int*>(&has_given_up_) = 1;
  }

  const PeerLinks& links_;
  PeerBlock block_;
  int& has_given_up_;    // shared by the block's threads
  bool has_met_ = true;  // the peer of the thread's number, if it is one
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
    if (p.norm.norm != nullptr) prefetch_to_l2(p.norm.norm + i);
    if (p.scales.column != nullptr) prefetch_to_l2(p.scales.column + i);
  }
}

// The residual norm of rows.cu behind the sum: x as it was comes in, `branch` is the sum.
template <int kRuns, RowOut kOut>
__device__ void add_and_norm(const ResidualNormParams& p, RowTeam& team, int64_t row,
                             const Packed (&branch)[kRuns], Packed (&x)[kRuns]) {
  const int width = static_cast<int>(p.hidden);
  const int64_t begin = row * width;
  const RowNorm<false> branch_norm(p.delta_norm, nullptr, branch, width, p.delta_eps, team);
#pragma unroll
  for (int r = 0; r < kRuns; ++r) {
    const int i = team.column(r, width);
    Floats branch_weight = {};
    if (p.delta_norm != nullptr) branch_weight = load_floats<true>(p.delta_norm + i, width - i);
    Floats add = branch_run<true>(
        p, branch_norm.applied_to<true>(unpack(branch[r]), branch_weight, i, width - i));
    if (p.rounds) add = rounded(add);
    x[r] = pack(sum_run<true>(p, unpack(x[r]), add));
    store_run<true>(static_cast<Bf16*>(p.x) + begin + i, width - i, x[r]);
  }
  if (p.out == nullptr) return;
  Floats weight[kRuns] = {};
#pragma unroll
  for (int r = 0; r < kRuns; ++r) {
    const int i = team.column(r, width);
    if (p.norm != nullptr) weight[r] = load_floats<true>(p.norm + i, width - i);
  }
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

// Two blocks on a multiprocessor, so that kPeerBlocks fit on a GPU at once. A thread reads and
// writes the same elements of delta, x and out, so that delta may be an out of bf16.
template <PeerWay kWay, int kCount, int kRuns, RowOut kOut, int kThreads>
__global__ void __launch_bounds__(kThreads, 2)
    summed_residual_norm_kernel(const __grid_constant__ ResidualKernelParams params) {
  __shared__ RowTeam::Shared team_shared;
  __shared__ int has_given_up;
  const PeerResidualParams& p = params.asked;
  const int width = static_cast<int>(p.norm.hidden);
  RowTeam team(team_shared, params.row_threads);
  if (threadIdx.x == 0) has_given_up = 0;
  team.begin();
  prefetch_constants<kRuns>(p, team, width);
  if (p.norm.lets_next_begin) dependency_trigger();
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
      add_and_norm<kRuns, kOut>(p.norm, team, row, branch, x);
    }
    if (row + step < p.norm.rows) sums.fence();
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
  ResidualGrid grid;
  const auto threads_of = [warps](unsigned blocks) { return (warps + blocks - 1) / blocks * 32; };
  const auto is_spare = [&](unsigned blocks) {
    return p.row_blocks != 0 ? blocks <= static_cast<unsigned>(p.row_blocks)
                             : blocks <= warps && p.norm.rows * blocks <= p.links.max_blocks;
  };
  while (grid.row_blocks < RowTeam::kMaxBlocks &&
         (is_spare(2 * grid.row_blocks) || threads_of(grid.row_blocks) > kPeerThreads)) {
    grid.row_blocks *= 2;
  }
  grid.threads = threads_of(grid.row_blocks);
  grid.rows = static_cast<unsigned>(
      std::min<int64_t>(p.norm.rows, p.links.max_blocks / static_cast<int64_t>(grid.row_blocks)));
  return grid;
}

using ResidualKernel = void (*)(ResidualKernelParams);
template <PeerWay kWay, int kCount, int kRuns, int kThreads>
ResidualKernel kernel_of(const PeerResidualParams& p) {
  if (p.only_sums) return summed_residual_norm_kernel<kWay, kCount, kRuns, RowOut::kSum, kThreads>;
  return p.norm.out_scale != nullptr
             ? summed_residual_norm_kernel<kWay, kCount, kRuns, RowOut::kFp8, kThreads>
             : summed_residual_norm_kernel<kWay, kCount, kRuns, RowOut::kBf16, kThreads>;
}

template <PeerWay kWay, int kCount, int kRuns>
cudaError_t launch_shape(const PeerResidualParams& p, unsigned row_threads, cudaStream_t stream) {
  const ResidualGrid grid = residual_grid(p, row_threads / 32);
  ResidualKernelParams params;
  params.asked = p;
  params.row_threads = static_cast<int32_t>(row_threads);
  params.tag = peer_tag(kFirstResidualOp + static_cast<uint32_t>(kWay), p.norm.rows, p.norm.hidden);
  // What four ranks have of two runs takes more registers than large blocks leave.
  constexpr int kFew = kCount > 2 && kRuns > 1 ? kPeerThreads / 2 : kPeerThreads;
  const ResidualKernel kernel = grid.threads <= kFew
                                    ? kernel_of<kWay, kCount, kRuns, kFew>(p)
                                    : kernel_of<kWay, kCount, kRuns, kPeerThreads>(p);
  return launch_pdl_in_front(kernel, dim3(grid.rows * grid.row_blocks), dim3(grid.threads), 0,
                             grid.row_blocks, p.norm.lets_next_begin, stream, params);
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
