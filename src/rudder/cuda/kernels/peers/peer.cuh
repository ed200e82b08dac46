// Device code of peer.h: places in inboxes, flags, the bounded wait, the sum in the order of ranks.
// Included by .cu files only.
#pragma once

#include <algorithm>

#include "rudder/cuda/kernels/device_vec.cuh"
#include "rudder/cuda/kernels/peers/peer.h"

namespace rudder::cuda {

// The faults are across the PCIe bus, where the reads of all blocks that wait would go one after
// the other: one block of a rank reads them at a time, this long after the one before.
inline constexpr uint64_t kPeerLookNs = 100'000;

__device__ inline uint64_t global_ns() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}
// What the thread's block stored before its last barrier is seen by whoever sees the flag.
__device__ inline void raise_flag(uint64_t* flag, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}
// Says nothing of what was stored before.
__device__ inline void raise_flag_alone(uint64_t* flag, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}
__device__ inline uint64_t peek_flag(const uint64_t* flag) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
  return value;
}
__device__ inline uint64_t read_flag(const uint64_t* flag) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
  return value;
}
__device__ inline uint32_t read_fault(const uint32_t* fault) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(fault) : "memory");
  return value;
}

// The exchanges of one block. A flag is the number of the exchange and `tag`, which names the op
// and its size: ranks that come with different ones fail.
class PeerBlock {
 public:
  __device__ PeerBlock(const PeerLinks& links, uint32_t tag)
      : links_(links), tag_(tag), epoch_(links.epochs[blockIdx.x]) {}

  // Begins the next exchange.
  __device__ void next() { ++epoch_; }
  // In the exchange so many further on.
  __device__ PeerBlock later(int exchanges) const {
    PeerBlock at = *this;
    at.epoch_ += static_cast<uint32_t>(exchanges);
    return at;
  }
  __device__ uint32_t epoch() const { return epoch_; }
  // Where rank `from` stores for rank `to` in this exchange.
  __device__ uint4* slot(int to, int from) const {
    const int64_t at = (int64_t{epoch_ & 1} * links_.count + from) * kPeerBlocks + blockIdx.x;
    return reinterpret_cast<uint4*>(links_.inbox[to] + at * kPeerPieceBytes);
  }
  // What the block has stored in the peers' slots is theirs; what they stored in its own is its. By
  // all its threads.
  __device__ void exchange(int phase) const {
    __syncthreads();
    const int peer = static_cast<int>(threadIdx.x);
    if (peer < links_.count && peer != links_.rank) {
      raise(peer, phase);
      wait_for(peer, phase);
    }
    __syncthreads();
  }
  // By one thread, of a phase of an exchange: that what the block stored before its last barrier is
  // there; and the wait until the peer says so.
  __device__ void raise(int peer, int phase) const {
    raise_flag(flag(peer, phase, links_.rank), word());
  }
  __device__ void wait_for(int peer, int phase) const {
    uint64_t begin = 0;
    const uint64_t* const from = flag(links_.rank, phase, peer);
    while (!has_come(peer, read_flag(from)) && goes_on(begin, peer)) {
    }
  }
  // For an exchange whose numbers tell by themselves that they have come: by one thread, that this
  // rank comes to it, and what a peer has said last.
  __device__ void announce(int peer) const { raise_flag_alone(flag(peer, 0, links_.rank), word()); }
  __device__ uint64_t heard_of(int peer) const { return peek_flag(flag(links_.rank, 0, peer)); }
  // Whether a peer whose flag is `seen` has come. One that has come with another op is a fault.
  __device__ bool has_come(int peer, uint64_t seen) const {
    // A peer may be one exchange ahead: it does not wait for this block to have read its flag.
    const auto ahead = static_cast<int32_t>(static_cast<uint32_t>(seen >> 32) - epoch_);
    if (ahead == 0 && seen != word()) fail(PeerFault::kOtherOp, peer);
    return ahead >= 0;
  }
  // Whether a thread that has waited for `peer` since `begin` (0: it begins now) goes on waiting.
  __device__ bool goes_on(uint64_t& begin, int peer) const {
    const uint64_t now = global_ns();
    if (begin == 0) begin = now;
    const uint64_t waited = now - begin;
    if (waited >= kPeerLookNs && takes_look(now) && has_failed()) return false;
    if (waited <= static_cast<uint64_t>(links_.patience_ns)) return true;
    fail(PeerFault::kLate, peer);
    return false;
  }
  // By one thread, behind the last exchange, of which every thread has read the number.
  __device__ void end() const { links_.epochs[blockIdx.x] = epoch_; }

 private:
  __device__ uint64_t word() const { return uint64_t{epoch_} << 32 | tag_; }
  __device__ uint64_t* flag(int of, int phase, int from) const {
    return links_.flags[of] + (int64_t{phase} * links_.count + from) * kPeerBlocks + blockIdx.x;
  }
  // Whether this block is the one that looks at the faults now.
  __device__ bool takes_look(uint64_t now) const {
    const auto word = reinterpret_cast<unsigned long long*>(links_.next_look);
    const unsigned long long next = __ldcg(word);
    return now >= next && atomicCAS(word, next, now + kPeerLookNs) == next;
  }
  // After a failure every block that waits looks at once.
  __device__ bool has_failed() const {
    for (int i = 0; i < links_.count; ++i) {
      if (read_fault(links_.faults + i) == 0) continue;
      atomicExch(reinterpret_cast<unsigned long long*>(links_.next_look), 0ull);
      return true;
    }
    return false;
  }
  __device__ void fail(PeerFault fault, int peer) const {
    volatile uint32_t* const mine = links_.faults + links_.rank;
    if (*mine == 0) *mine = static_cast<uint32_t>(fault) << 8 | static_cast<uint32_t>(peer);
    __threadfence_system();
  }

  const PeerLinks& links_;
  const uint32_t tag_;
  uint32_t epoch_;
};

__device__ inline uint4 bits_of(const Packed& packed) {
  uint4 bits;
  memcpy(&bits, &packed, sizeof(bits));
  return bits;
}
__device__ inline Packed packed_of(const uint4& bits) {
  Packed packed;
  memcpy(&packed, &bits, sizeof(packed));
  return packed;
}

// The ranks' parts of a run, added in their order.
template <int kCount>
__device__ Packed sum_in_order(const uint4 (&parts)[kCount]) {
  Floats sum = unpack(packed_of(parts[0]));
#pragma unroll
  for (int i = 1; i < kCount; ++i) {
    const Floats part = unpack(packed_of(parts[i]));
#pragma unroll
    for (int j = 0; j < kRun; ++j) sum.v[j] = __fadd_rn(sum.v[j], part.v[j]);
  }
  return pack(sum);
}
// Those of peers from their slots.
template <int kCount>
__device__ Packed sum_of(const PeerBlock& block, const PeerLinks& links, const Packed& mine,
                         int64_t at) {
  uint4 parts[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    parts[i] = i == links.rank ? bits_of(mine) : __ldcg(block.slot(links.rank, i) + at);
  }
  return sum_in_order(parts);
}

// How `runs` are divided among blocks: equal parts, none empty.
struct PeerGrid {
  int64_t runs_per_block = 0;
  unsigned blocks = 0;
};
inline PeerGrid peer_grid(const PeerLinks& links, int64_t runs, int32_t max_blocks) {
  const int64_t wanted = (runs + kPeerThreads - 1) / kPeerThreads;
  const int64_t most = std::min<int64_t>({wanted, max_blocks, links.max_blocks});
  const int64_t each = (runs + most - 1) / most;
  return {each, static_cast<unsigned>((runs + each - 1) / each)};
}

// Of an op and its sizes.
inline uint32_t peer_tag(uint32_t op, int64_t rows, int64_t cols) {
  uint64_t hash = (static_cast<uint64_t>(rows) << 32 ^ static_cast<uint64_t>(cols)) * 8 + op;
  hash *= 0x9E3779B97F4A7C15u;
  return static_cast<uint32_t>(hash >> 32);
}

}  // namespace rudder::cuda
