// wgmma (m64nNk16, bf16 or f16 in, fp32 sums) for the attention kernel that uses it. Included by
// attention_wgmma.cu only.
//
// Operands in shared memory lie as column groups of 64 elements (128 bytes), each [rows][128 bytes]
// with the copy engine's 128-byte swizzle (attention_device.cuh), 1024-byte aligned. A thread of
// the warpgroup holds, of an accumulator c, with w = warp, g = lane / 4, t = lane % 4: c[4i] and
// c[4i + 1] at row 16w + g, columns 8i + 2t and the next; c[4i + 2] and c[4i + 3] the same of row
// 16w + g + 8. A in registers lies as in mma.m16n8k16.
#pragma once

#include <cstdint>

namespace rudder::cuda {

// Matrix descriptors (PTX ISA, "Matrix descriptor format"): bits 0-13 address, 16-29 leading
// offset, 32-45 stride offset, each in 16 bytes; 62-63 swizzle, 1 = 128 bytes.
__device__ inline uint64_t operand(uint32_t address, uint32_t leading, uint32_t stride) {
  return uint64_t{(address & 0x3ffff) >> 4} | uint64_t{leading >> 4} << 16 |
         uint64_t{stride >> 4} << 32 | uint64_t{1} << 62;
}
// k along the columns (q and K of q . k): 8-row groups follow at 1024 bytes; the leading offset is
// not used. Advance by 32 bytes for 16 k within a column group.
__device__ inline uint64_t operand_by_rows(uint32_t address) {
  return operand(address, 16, 1024);
}
// k along the rows (V of weights . V): 8 k follow at 1024 bytes, the next 64 columns at
// `group_bytes`. Advance by 2048 bytes for 16 k.
__device__ inline uint64_t operand_by_columns(uint32_t address, uint32_t group_bytes) {
  return operand(address, group_bytes, 1024);
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

#define RUDDER_ACCUMULATORS_8(c, i)                                                           \
  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), \
      "+f"(c[i + 6]), "+f"(c[i + 7])
#define RUDDER_ACCUMULATORS_32(c)                                                         \
  RUDDER_ACCUMULATORS_8(c, 0), RUDDER_ACCUMULATORS_8(c, 8), RUDDER_ACCUMULATORS_8(c, 16), \
      RUDDER_ACCUMULATORS_8(c, 24)
#define RUDDER_ACCUMULATORS_64(c)                                                        \
  RUDDER_ACCUMULATORS_32(c), RUDDER_ACCUMULATORS_8(c, 32), RUDDER_ACCUMULATORS_8(c, 40), \
      RUDDER_ACCUMULATORS_8(c, 48), RUDDER_ACCUMULATORS_8(c, 56)

// c = A . B^T (+ c), both by rows in shared memory, bf16 or f16. N = 64 and 128.
template <bool kHalf>
__device__ inline void wgmma_shared(float (&c)[32], uint64_t a, uint64_t b, bool accumulate) {
  if constexpr (kHalf) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, add, 1, 1, 0, 0;\n}\n"
        : RUDDER_ACCUMULATORS_32(c)
        : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)));
  } else {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, add, 1, 1, 0, 0;\n}\n"
        : RUDDER_ACCUMULATORS_32(c)
        : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)));
  }
}
template <bool kHalf>
__device__ inline void wgmma_shared(float (&c)[64], uint64_t a, uint64_t b, bool accumulate) {
  if constexpr (kHalf) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
        "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
        "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, add, 1, 1, 0, 0;\n}\n"
        : RUDDER_ACCUMULATORS_64(c)
        : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)));
  } else {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
        "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
        "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, add, 1, 1, 0, 0;\n}\n"
        : RUDDER_ACCUMULATORS_64(c)
        : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)));
  }
}

// c += A . B, A in registers, B by columns in shared memory. N = 64 and 128.
template <bool kHalf>
__device__ inline void wgmma_registers(float (&c)[32], const uint32_t (&a)[4], uint64_t b) {
  if constexpr (kHalf) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
        : RUDDER_ACCUMULATORS_32(c)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  } else {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
        : RUDDER_ACCUMULATORS_32(c)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
}
template <bool kHalf>
__device__ inline void wgmma_registers(float (&c)[64], const uint32_t (&a)[4], uint64_t b) {
  if constexpr (kHalf) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
        "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
        "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
        : RUDDER_ACCUMULATORS_64(c)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  } else {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
        "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
        "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
        : RUDDER_ACCUMULATORS_64(c)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
}

#undef RUDDER_ACCUMULATORS_8
#undef RUDDER_ACCUMULATORS_32
#undef RUDDER_ACCUMULATORS_64

}  // namespace rudder::cuda
