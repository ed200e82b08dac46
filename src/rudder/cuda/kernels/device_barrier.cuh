// mbarriers in shared memory: arrivals and bytes that a phase waits for, of this block's threads,
// of the copy engine or of other blocks of the cluster. Included by .cu files only.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace rudder::cuda {

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ inline void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
// Makes inits visible to the copy engine; a block barrier follows.
__device__ inline void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ inline void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "wait_again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra.uni wait_over;\n"
      "bra.uni wait_again;\n"
      "wait_over:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// Of a phase, without a wait.
__device__ inline bool barrier_is_over(uint32_t barrier, uint32_t parity) {
  uint32_t is_over;
  asm volatile(
      "{\n"
      ".reg .pred over;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 over, [%1], %2;\n"
      "selp.u32 %0, 1, 0, over;\n"
      "}\n"
      : "=r"(is_over)
      : "r"(barrier), "r"(parity)
      : "memory");
  return is_over != 0;
}

// The cluster has begun, and what was initialised before is seen by all its blocks (inits of
// mbarriers after barrier_init_fence()). Unlike cooperative groups' barrier this waits for no store
// to global memory and keeps the L1 cache. By all threads of the cluster, each of the two once.
__device__ inline void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void cluster_wait() {
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}
// By all threads of the cluster: what any of them wrote before is seen by all after.
__device__ inline void cluster_barrier() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}
__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ inline uint32_t cluster_size() {
  uint32_t size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}
// The address in block `rank` of what this block has at `address`.
__device__ inline uint32_t shared_of_rank(uint32_t address, uint32_t rank) {
  uint32_t out;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(out) : "r"(address), "r"(rank));
  return out;
}
// 4 bytes of a block of the cluster; an address of shared_of_rank().
__device__ inline float load_from_rank(uint32_t address) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}
// Stores 4 bytes in a block of the cluster and tells its barrier so; addresses of shared_of_rank().
__device__ inline void store_to_rank(uint32_t address, float value, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(address),
      "r"(__float_as_uint(value)), "r"(barrier)
      : "memory");
}
__device__ inline void store_to_rank(uint32_t address, float2 values, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(
          address),
      "r"(__float_as_uint(values.x)), "r"(__float_as_uint(values.y)), "r"(barrier)
      : "memory");
}

}  // namespace rudder::cuda
