// Device code of peer.h: places in inboxes, flags, the bounded wait. Included by .cu files only.
#pragma once

#include "rudder/cuda/kernels/peer.h"

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
// and its size: ranks that come with different ones fail. All threads of the block call each
// function.
class PeerBlock {
 public:
  __device__ PeerBlock(const PeerLinks& links, uint32_t tag)
      : links_(links), tag_(tag), epoch_(links.epochs[blockIdx.x]) {}

  // Begins the next exchange.
  __device__ void next() { ++epoch_; }
  // Where rank `from` stores for rank `to` in this exchange.
  __device__ uint4* slot(int to, int from) const {
    const int64_t at = (int64_t{epoch_ & 1} * links_.count + from) * kPeerBlocks + blockIdx.x;
    return reinterpret_cast<uint4*>(links_.inbox[to] + at * kPeerPieceBytes);
  }
  // What the block has stored in the peers' slots is theirs; what they stored in its own is its. A
  // two-shot exchange has two phases.
  __device__ void exchange(int phase) const {
    __syncthreads();
    const int peer = static_cast<int>(threadIdx.x);
    if (peer < links_.count && peer != links_.rank) {
      raise_flag(flag(peer, phase, links_.rank), word());
      wait_for(peer, phase);
    }
    __syncthreads();
  }
  // Behind the last exchange, which every thread has left.
  __device__ void end() const {
    if (threadIdx.x == 0) links_.epochs[blockIdx.x] = epoch_;
  }

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
  // A peer may be one exchange ahead: it does not wait for this block to have read its flag.
  __device__ void wait_for(int peer, int phase) const {
    const uint64_t* const from = flag(links_.rank, phase, peer);
    uint64_t begin = 0;
    while (true) {
      const uint64_t seen = read_flag(from);
      const auto ahead = static_cast<int32_t>(static_cast<uint32_t>(seen >> 32) - epoch_);
      if (ahead >= 0) {
        if (ahead == 0 && seen != word()) fail(PeerFault::kOtherOp, peer);
        return;
      }
      const uint64_t now = global_ns();
      if (begin == 0) begin = now;
      const uint64_t waited = now - begin;
      if (waited >= kPeerLookNs && takes_look(now) && has_failed()) return;
      if (waited > static_cast<uint64_t>(links_.patience_ns)) return fail(PeerFault::kLate, peer);
    }
  }

  const PeerLinks& links_;
  const uint32_t tag_;
  uint32_t epoch_;
};

// How `runs` are divided among blocks: equal parts, none empty.
struct PeerGrid {
  int64_t runs_per_block = 0;
  unsigned blocks = 0;
};
inline PeerGrid peer_grid(int64_t runs, int64_t max_blocks) {
  const int64_t wanted = (runs + kPeerThreads - 1) / kPeerThreads;
  const int64_t most = wanted < max_blocks ? wanted : max_blocks;
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
