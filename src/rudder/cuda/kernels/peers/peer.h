// Kernels by which the ranks of a group (ops/comm.h), each on a GPU of its own, sum and gather what
// they have. A rank stores its numbers in the memory of its peers and raises a flag there; then it
// waits for the flags of its peers and reads what they stored in its own memory. Launched by the
// host class of this room, on every rank with equal sizes and in the same order. They may be
// captured: which exchange it is, a kernel counts in device memory.
//
// Block b of a rank exchanges with block b of its peers alone, so a peer's blocks must come to run:
// a grid has at most kPeerBlocks blocks, which fit on a GPU at once, and ranks that share a GPU
// have parts of them (PeerLinks::max_blocks). The next kernel's blocks start only when all of this
// one run (launch.h). A wait is bounded by `patience_ns`. One that ends in vain writes to `faults`;
// from then on no kernel of the group waits, and what they write is of no meaning.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/cuda/kernels/products/product_scales.h"

namespace rudder::cuda {

inline constexpr int kMaxPeers = 8;
inline constexpr int kPeerBlocks = 128;
inline constexpr int kPeerThreads = 512;
inline constexpr int kPeerPhases = 4;  // of an exchange, each with a flag
inline constexpr int kPeerRuns = 8;    // of 16 bytes, that a thread stores in one exchange
inline constexpr int64_t kPeerPieceBytes = int64_t{kPeerThreads} * kPeerRuns * 16;

// Peers store in one half of a rank's inbox while it reads the other, so no exchange waits for its
// readers: a rank that comes to exchange e + 2 knows that all have ended e, since they came to
// e + 1.
constexpr int64_t peer_inbox_bytes(int count) {
  return 2 * int64_t{count} * kPeerBlocks * kPeerPieceBytes;
}
// The second inbox, in which a word tells by itself that it has come (peer_residual.cu): all ones
// is none.
inline constexpr int64_t kPeerWordsPieceBytes = 16 * 1024;
constexpr int64_t peer_words_bytes(int count) {
  return 2 * int64_t{count} * kPeerBlocks * kPeerWordsPieceBytes;
}
constexpr int64_t peer_num_flags(int count) {
  return int64_t{kPeerPhases} * count * kPeerBlocks;
}

// What a rank found wrong: in a word of `faults` this is above the peer's 8 bits.
enum class PeerFault : uint32_t { kNone = 0, kLate = 1, kOtherOp = 2, kHost = 3 };

// The group as one rank's kernels see it.
struct PeerLinks {
  int32_t rank = 0;
  int32_t count = 1;                 // 2, 4 or 8
  bool is_open = true;               // false: the rank does without its peers
  int64_t patience_ns = 0;           // of one wait
  int32_t max_blocks = kPeerBlocks;  // of a kernel; equal on all ranks
  // Of each rank: [2 halves][count senders][kPeerBlocks][piece], and behind it the inbox of words,
  // alike with pieces of its own.
  char* inbox[kMaxPeers] = {};
  uint64_t* flags[kMaxPeers] = {};  // of each rank: [kPeerPhases][count senders][kPeerBlocks]
  uint32_t* epochs = nullptr;       // [kPeerBlocks] exchanges of each block of this rank
  uint32_t* faults = nullptr;       // [count] in memory of the host, of each rank
  uint64_t* next_look = nullptr;    // when a block of this rank looks at `faults` again; one word
};

// y = the sum of the ranks' y, in place: each element is scaled and rounded to bf16, then added in
// fp32 in the order of ranks, and rounded. So every rank has the same bits, and an element's do not
// depend on the size. One-shot: every rank adds all elements. Two-shot: each adds its part of every
// piece and sends the sums on; fewer bytes from three ranks on, and two hops.
// `y` is 16-byte aligned.
struct PeerSumParams {
  PeerLinks links;
  void* y = nullptr;     // [rows, cols] bf16
  ProductScales scales;  // of y, if takes_scales()
  int64_t rows = 0;
  int64_t cols = 0;
  bool is_two_shot = false;
  int32_t max_blocks = kPeerBlocks;  // up to kPeerBlocks, equal on all ranks
};
// Whether the kernel applies the scales of a product.
inline bool takes_scales(const PeerSumParams& params) {
  return params.cols % 8 == 0;
}
cudaError_t launch_peer_sum(const PeerSumParams& params, cudaStream_t stream);

// out[r] = the ranks' part[r], side by side. Rank i's part has begin[i + 1] - begin[i] columns, of
// which the first rank has most.
struct PeerGatherParams {
  PeerLinks links;
  const float* part = nullptr;  // [rows, begin[rank + 1] - begin[rank]]
  float* out = nullptr;         // [rows, begin[count]]
  int64_t rows = 0;
  int32_t begin[kMaxPeers + 1] = {};
};
cudaError_t launch_peer_gather(const PeerGatherParams& params, cudaStream_t stream);

}  // namespace rudder::cuda
