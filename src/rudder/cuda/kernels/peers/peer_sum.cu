#include "rudder/cuda/kernels/device_vec.cuh"
#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/peers/peer.cuh"
#include "rudder/cuda/kernels/products/product_scales.cuh"

namespace rudder::cuda {
namespace {

constexpr int64_t kPieceRuns = int64_t{kPeerThreads} * kPeerRuns;
constexpr int kTurnRuns = kPieceRuns / 2;  // of a piece where a block has several in two shots
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
  if (thread == 0) block.end();
}

// Rank i adds the i-th of `count` equal parts of the block's runs, which are one piece. Sums lie in
// the second half of a slot.
template <int kCount>
__global__ void __launch_bounds__(kPeerThreads) two_shot_kernel(const SumKernelParams p) {
  dependency_wait();
  dependency_trigger();
  constexpr int kSums = kPieceRuns / 2;
  const PeerLinks& links = p.sum.links;
  const int64_t begin = int64_t{blockIdx.x} * p.runs_per_block;
  const int length = static_cast<int>(min(p.runs_per_block, p.runs - begin));
  const int each = (length + kCount - 1) / kCount;
  const int thread = static_cast<int>(threadIdx.x);
  PeerBlock block(links, p.tag);
  block.next();
  for (int at = thread; at < length; at += kPeerThreads) {
    const int owner = at / each;
    if (owner == links.rank) continue;
    block.slot(owner, links.rank)[at - owner * each] = bits_of(load_mine(p, begin + at));
  }
  block.exchange(0);
  const int own_begin = links.rank * each;
  const int own_end = min(own_begin + each, length);
  for (int at = own_begin + thread; at < own_end; at += kPeerThreads) {
    const Packed sum = sum_of<kCount>(block, links, load_mine(p, begin + at), at - own_begin);
    store_sum(p, begin + at, sum);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i != links.rank) block.slot(i, links.rank)[kSums + at - own_begin] = bits_of(sum);
    }
  }
  block.exchange(1);
  for (int at = thread; at < length; at += kPeerThreads) {
    const int owner = at / each;
    if (owner == links.rank) continue;
    const uint4 sum = __ldcg(block.slot(links.rank, owner) + kSums + at - owner * each);
    store_sum(p, begin + at, packed_of(sum));
  }
  if (thread == 0) block.end();
}

// The same of more pieces. An exchange has two of them, each with a half of a slot, of which the
// second half has the sums. While sums of a piece are on their way the next pieces are sent, so
// links are not idle for two hops a piece. A warp of its own raises flags and waits for those of
// peers: to raise one is to wait until everything before it has arrived.
template <int kCount>
class PiecesSum {
 public:
  __device__ PiecesSum(const SumKernelParams& p)
      : p_(p),
        block_(PeerBlock(p.sum.links, p.tag).later(1)),
        rank_(p.sum.links.rank),
        begin_(int64_t{blockIdx.x} * p.runs_per_block),
        end_(min(begin_ + p.runs_per_block, p.runs)),
        pieces_(static_cast<int>((end_ - begin_ + kTurnRuns - 1) / kTurnRuns)) {}

  // By the first kPeerThreads threads.
  __device__ void sum() {
    for (int i = 0; i < min(kPiecesAhead, pieces_); ++i) send(i);
    for (int i = 0; i < pieces_; ++i) {
      sync(kPartsHere);
      add(i);
      if (i + kPiecesAhead < pieces_) send(i + kPiecesAhead);
      sync(kSumsHere);
      take(i);
    }
  }
  // By a warp.
  __device__ void exchange_flags() {
    for (int i = 0; i < min(kPiecesAhead, pieces_); ++i) raise(i, kParts);
    for (int i = 0; i < pieces_; ++i) {
      wait(i, kParts);
      arrive(kPartsHere);
      raise(i, kSums);
      if (i + kPiecesAhead < pieces_) raise(i + kPiecesAhead, kParts);
      wait(i, kSums);
      arrive(kSumsHere);
    }
    if (peer() == 0) block_.later((pieces_ - 1) / 2).end();
  }

  static constexpr int kThreads = kPeerThreads + 32;

 private:
  static constexpr int kSumsBegin = kTurnRuns / 2;
  static constexpr int kEach = kTurnRuns / kPeerThreads;  // runs of a piece, of a thread
  // A piece is sent when that three in front of it has been taken; peers may read the two between.
  static constexpr int kPiecesAhead = 2;
  enum Phase { kParts, kSums };
  // Barriers of the block. Of what has been stored there are two, since two phases of stores go by
  // between two waits of those who store.
  enum Barrier { kStored = 1, kPartsHere = 3, kSumsHere = 4 };

  __device__ static void sync(int barrier) {
    asm volatile("barrier.cta.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
  }
  __device__ static void arrive(int barrier) {
    asm volatile("barrier.cta.arrive %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
  }
  __device__ void has_stored() { arrive(kStored + stores_++ % 2); }

  __device__ void raise(int piece, Phase phase) {
    sync(kStored + stores_++ % 2);
    if (has_peer()) block_.later(piece / 2).raise(peer(), 2 * (piece % 2) + phase);
    __syncwarp();
  }
  __device__ void wait(int piece, Phase phase) const {
    if (has_peer()) block_.later(piece / 2).wait_for(peer(), 2 * (piece % 2) + phase);
    __syncwarp();
  }
  __device__ static int peer() { return static_cast<int>(threadIdx.x % 32); }
  __device__ bool has_peer() const { return peer() < kCount && peer() != rank_; }

  __device__ int64_t first_run(int piece) const { return begin_ + int64_t{piece} * kTurnRuns; }
  __device__ int length(int piece) const {
    return static_cast<int>(min(end_ - first_run(piece), int64_t{kTurnRuns}));
  }
  __device__ static int part_of(int length) { return (length + kCount - 1) / kCount; }
  __device__ uint4* slot(int piece, int to, int from) const {
    return block_.later(piece / 2).slot(to, from) + piece % 2 * kTurnRuns;
  }

  // f(run of the piece, rank that adds it, n) for those of the thread that another rank adds.
  template <typename F>
  __device__ void for_others(int length, F f) const {
    const int each = part_of(length);
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int at = n * kPeerThreads + static_cast<int>(threadIdx.x);
      const int owner = at / each;
      if (at < length && owner != rank_) f(at, owner, n);
    }
  }
  __device__ void send(int piece) {
    const int count = length(piece);
    const int64_t first = first_run(piece);
    Packed mine[kEach];
    for_others(count, [&](int at, int, int n) { mine[n] = load_mine(p_, first + at); });
    for_others(count, [&](int at, int owner, int n) {
      slot(piece, owner, rank_)[at - owner * part_of(count)] = bits_of(mine[n]);
    });
    has_stored();
  }
  __device__ void add(int piece) {
    const int each = part_of(length(piece));
    const int begin = rank_ * each;
    const int end = min(begin + each, length(piece));
    const PeerBlock block = block_.later(piece / 2);
    const int half = piece % 2 * kTurnRuns;
    for (int at = begin + static_cast<int>(threadIdx.x); at < end; at += kPeerThreads) {
      const int64_t run = first_run(piece) + at;
      const Packed sum = sum_of<kCount>(block, p_.sum.links, load_mine(p_, run), half + at - begin);
      store_sum(p_, run, sum);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (i != rank_) slot(piece, i, rank_)[kSumsBegin + at - begin] = bits_of(sum);
      }
    }
    has_stored();
  }
  __device__ void take(int piece) const {
    const int count = length(piece);
    uint4 sums[kEach];
    for_others(count, [&](int at, int owner, int n) {
      sums[n] = __ldcg(slot(piece, rank_, owner) + kSumsBegin + at - owner * part_of(count));
    });
    for_others(count, [&](int at, int, int n) {
      store_sum(p_, first_run(piece) + at, packed_of(sums[n]));
    });
  }

  const SumKernelParams& p_;
  const PeerBlock block_;  // at its first exchange
  const int rank_;
  const int64_t begin_;  // runs of the block
  const int64_t end_;
  const int pieces_;
  unsigned stores_ = 0;
};

template <int kCount>
__global__ void __launch_bounds__(PiecesSum<kCount>::kThreads)
    two_shot_pieces_kernel(const __grid_constant__ SumKernelParams p) {
  dependency_wait();
  dependency_trigger();
  PiecesSum<kCount> sum(p);
  if (threadIdx.x < kPeerThreads) {
    sum.sum();
  } else {
    sum.exchange_flags();
  }
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
template <int kCount>
SumKernel kernel_of(const PeerSumParams& p, bool has_pieces) {
  if (!p.is_two_shot) return one_shot_kernel<kCount>;
  return has_pieces ? two_shot_pieces_kernel<kCount> : two_shot_kernel<kCount>;
}
SumKernel kernel_of(const PeerSumParams& p, bool has_pieces) {
  if (!p.links.is_open) return own_sum_kernel;
  switch (p.links.count) {
    case 2:
      return kernel_of<2>(p, has_pieces);
    case 4:
      return kernel_of<4>(p, has_pieces);
    case 8:
      return kernel_of<8>(p, has_pieces);
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
  params.runs = (params.count + kRun - 1) / kRun;
  if (params.runs > kMaxRuns || p.max_blocks < 1 || p.max_blocks > kPeerBlocks) {
    return cudaErrorInvalidValue;
  }
  const PeerGrid grid = peer_grid(p.links, params.runs, p.max_blocks);
  params.runs_per_block = grid.runs_per_block;
  params.tag = peer_tag(p.is_two_shot ? kTwoShotOp : kOneShotOp, p.rows, p.cols);
  const bool has_pieces = p.links.is_open && p.is_two_shot && grid.runs_per_block > kTurnRuns;
  const bool has_scales = p.scales.row != nullptr;
  const SumKernel kernel = kernel_of(p, has_pieces);
  if (kernel == nullptr || !is_aligned(p.y) || !is_aligned(p.scales.column) ||
      !is_aligned(p.scales.bias) || (has_scales && !takes_scales(p))) {
    return cudaErrorInvalidValue;
  }
  const unsigned threads = kPeerThreads + (has_pieces ? 32 : 0);
  return launch_pdl(kernel, dim3(grid.blocks), dim3(threads), 0, stream, params);
}

}  // namespace rudder::cuda
