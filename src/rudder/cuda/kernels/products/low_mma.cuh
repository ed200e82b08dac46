// What kernels of low-bit products share: bytes into shared memory, tokens as operand B, mma of a
// warp. Included by .cu files only.
#pragma once

#include <cstdint>

namespace rudder::cuda {

// Whole bytes, one after the other, into shared memory; `barrier` counts them.
__device__ __forceinline__ void fetch_bytes(uint32_t to, const void* from, uint32_t bytes,
                                            uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void fetch_bytes(uint32_t to, const void* from, uint32_t bytes,
                                            uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void load_shared_16(uint32_t* words, uint32_t address) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_shared_8(uint32_t* words, uint32_t address) {
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
               : "=r"(words[0]), "=r"(words[1])
               : "r"(address)
               : "memory");
}
// Of 8 tokens and 32 inputs, operand B of two mma: the lane's address is of a row of 16 bytes.
__device__ __forceinline__ void load_inputs(uint32_t (&b)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(address)
               : "memory");
}
// sum[16 x 8] += a[16 x 16] . b[16 x 8], as a thread has them (wgmma.cuh, of one warp).
__device__ __forceinline__ void multiply_add(float* sum, const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Every row of `sum` is each token's sum: ones times tokens.
__device__ __forceinline__ void add_tokens(float* sum, uint32_t b0, uint32_t b1) {
  constexpr uint32_t kOnes[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
  multiply_add(sum, kOnes, b0, b1);
}

}  // namespace rudder::cuda
