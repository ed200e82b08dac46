// A ring of slots in shared memory that the copy engine fills and a warpgroup reads, in turns.
// Included by .cu files only.
#pragma once

#include <cstdint>

#include "rudder/cuda/kernels/device_barrier.cuh"

namespace rudder::cuda {

struct alignas(64) TensorMap {
  uint64_t words[16];
};

// A box of a map into shared memory; `barrier` counts its bytes.
__device__ __forceinline__ void fetch(uint32_t to, const TensorMap& map, int32_t column,
                                      int32_t row, uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(column), "r"(row), "r"(barrier), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(&map)) : "memory");
}
// What stays in L2: weights are read once, tokens by every block.
__device__ __forceinline__ uint64_t evict_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ uint64_t evict_last() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// A slot has two parts, which come when they may: of each a barrier counts the bytes.
struct FetchRing {
  uint32_t slots;  // their address
  uint32_t slot_bytes;
  int32_t count;
  uint32_t weights_full;  // barriers, one a slot
  uint32_t tokens_full;
  uint32_t empty;

  __device__ __forceinline__ uint32_t slot(int32_t i) const {
    return slots + static_cast<uint32_t>(i) * slot_bytes;
  }
  __device__ __forceinline__ static uint32_t of(uint32_t barriers, int32_t i) {
    return barriers + static_cast<uint32_t>(i) * sizeof(uint64_t);
  }
  // By one thread. `readers` arrive when a slot has been read.
  __device__ void init(uint32_t readers) const {
#pragma unroll 1
    for (int32_t i = 0; i < count; ++i) {
      barrier_init(of(weights_full, i), 1);
      barrier_init(of(tokens_full, i), 1);
      barrier_init(of(empty, i), readers);
    }
  }
};

// A walk around a ring.
struct RingWalk {
  int32_t at = 0;
  uint32_t turn = 0;

  __device__ __forceinline__ void next(const FetchRing& ring) {
    if (++at < ring.count) return;
    at = 0;
    ++turn;
  }
  // `full` is one of the ring's.
  __device__ __forceinline__ void wait_full(uint32_t full) const {
    barrier_wait(FetchRing::of(full, at), turn & 1);
  }
  // Whether the slot has been filled before a barrier's first phase was over.
  __device__ __forceinline__ bool wait_full_unless(uint32_t full, uint32_t barrier) const {
    while (!barrier_is_over(FetchRing::of(full, at), turn & 1)) {
      if (barrier_is_over(barrier, 0)) return false;
    }
    return true;
  }
  __device__ __forceinline__ void wait_empty(const FetchRing& ring) const {
    if (turn > 0) barrier_wait(FetchRing::of(ring.empty, at), (turn - 1) & 1);
  }
};

}  // namespace rudder::cuda
