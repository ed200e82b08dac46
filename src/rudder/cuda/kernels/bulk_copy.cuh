// Copies of bytes that lie one behind another by the copy engine: multiples of 16 bytes, as their
// addresses are. Included by .cu files only.
#pragma once

#include "rudder/cuda/kernels/device_barrier.cuh"

namespace rudder::cuda {

// To shared memory; `barrier` counts them.
__device__ inline void copy_bulk(const void* to, const void* from, uint32_t bytes,
                                 const uint64_t& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(&barrier))
      : "memory");
}
// To the L2 cache.
__device__ inline void prefetch_bulk_copy(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)),
               "r"(bytes));
}
// Shared memory that threads have used, and are done with behind a barrier, may be written.
__device__ inline void fence_before_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace rudder::cuda
