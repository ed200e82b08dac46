// What every use of wgmma needs: matrix descriptors of operands in shared memory, the fence, the
// groups in flight. Included by .cu files only.
//
// Operands in shared memory lie as column groups of 128 bytes, each [rows][128 bytes] with the copy
// engine's 128-byte swizzle, 1024-byte aligned. A thread of the warpgroup holds, of an accumulator
// c, with w = warp, g = lane / 4, t = lane % 4: c[4i] and c[4i + 1] at row 16w + g, columns 8i + 2t
// and the next; c[4i + 2] and c[4i + 3] the same of row 16w + g + 8.
#pragma once

#include <cstdint>

namespace rudder::cuda {

// Matrix descriptors (PTX ISA, "Matrix descriptor format"): bits 0-13 address, 16-29 leading
// offset, 32-45 stride offset, each in 16 bytes; 62-63 swizzle, 1 = 128 bytes.
__device__ inline uint64_t operand(uint32_t address, uint32_t leading, uint32_t stride) {
  return uint64_t{(address & 0x3ffff) >> 4} | uint64_t{leading >> 4} << 16 |
         uint64_t{stride >> 4} << 32 | uint64_t{1} << 62;
}
// k along the columns: 8-row groups follow at 1024 bytes; the leading offset is not used. Advance
// by 32 bytes for the next 32 bytes of k within a column group.
__device__ inline uint64_t operand_by_rows(uint32_t address) {
  return operand(address, 16, 1024);
}
__device__ inline uint64_t advanced(uint64_t operand, uint32_t bytes) {
  return operand + (bytes >> 4);
}

// Before the first wgmma on registers that other instructions have written.
__device__ inline void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most kPending groups are in flight.
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving uses of registers over a wait.
template <int kCount>
__device__ inline void hold(float (&c)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(c[i])::"memory");
}

}  // namespace rudder::cuda
