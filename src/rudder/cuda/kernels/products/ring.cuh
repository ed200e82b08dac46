// Rings of slots in shared memory that the copy engine fills and a warpgroup reads, in turns.
// Included by .cu files only.
#pragma once

#include <cstdint>

#include "rudder/cuda/kernels/device_barrier.cuh"
#include "rudder/cuda/kernels/wgmma.cuh"

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
// What stays in L2: what is read once does not, what every block reads does.
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

__device__ __forceinline__ uint64_t evict_normal() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// What is fetched for the chunks of a product, one after the other, each into the next slot.
struct FetchRing {
  uint32_t slots;  // their address
  uint32_t slot_bytes;
  int32_t count;
  uint32_t full;  // barriers, one a slot, that count the bytes that come

  __device__ __forceinline__ uint32_t slot(int32_t i) const {
    return slots + static_cast<uint32_t>(i) * slot_bytes;
  }
};
__device__ __forceinline__ uint32_t barrier_of(uint32_t barriers, int32_t i) {
  return barriers + static_cast<uint32_t>(i) * sizeof(uint64_t);
}
// A walk around a ring.
struct RingWalk {
  int32_t at = 0;
  uint32_t parity = 0;  // of the turn

  __device__ __forceinline__ void next(int32_t count) {
    if (++at < count) return;
    at = 0;
    parity ^= 1;
  }
  __device__ __forceinline__ void skip(int32_t slots, int32_t count) {
    const int32_t to = at + slots;
    at = to % count;
    parity ^= static_cast<uint32_t>(to / count) & 1;
  }
  // For the phase of this turn of a barrier of the slot.
  __device__ __forceinline__ void wait(uint32_t barriers) const {
    barrier_wait(barrier_of(barriers, at), parity);
  }
  // Whether it was over before another barrier's first phase was.
  __device__ __forceinline__ bool wait_unless(uint32_t barriers, uint32_t other) const {
    while (!barrier_is_over(barrier_of(barriers, at), parity)) {
      if (barrier_is_over(other, 0)) return false;
    }
    return true;
  }
};

// operand_by_rows() of an address, of which a turn works out the low half alone.
class SlotOperand {
 public:
  SlotOperand() = default;
  __device__ explicit SlotOperand(uint32_t address)
      : low_(static_cast<uint32_t>(operand_by_rows(address))) {
    asm volatile("" : "+r"(low_));  // nor is this worked out again in every turn
  }
  __device__ __forceinline__ SlotOperand of(const FetchRing& ring, int32_t slot) const {
    SlotOperand other;
    other.low_ = low_ + static_cast<uint32_t>(slot) * (ring.slot_bytes >> 4);
    return other;
  }
  __device__ __forceinline__ uint64_t advanced(uint32_t bytes) const {
    constexpr uint64_t kHigh = uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32;
    return kHigh | (low_ + (bytes >> 4));
  }

 private:
  uint32_t low_;
};

}  // namespace rudder::cuda
