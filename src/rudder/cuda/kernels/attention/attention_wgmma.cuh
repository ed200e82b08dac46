// wgmma (bf16, f16 or e4m3 in, fp32 sums) for the attention kernel that uses it; operands and
// accumulators lie as wgmma.cuh says, A in registers as in mma.m16n8k16. Included by
// attention_wgmma.cu only.
#pragma once

#include <cstdint>

#include "rudder/cuda/kernels/wgmma.cuh"

namespace rudder::cuda {

// k along the rows (V of weights . V): 8 k follow at 1024 bytes, the next 64 columns at
// `group_bytes`. Advance by 2048 bytes for 16 k.
__device__ inline uint64_t operand_by_columns(uint32_t address, uint32_t group_bytes) {
  return operand(address, group_bytes, 1024);
}

#define RUDDER_ACCUMULATORS_8(c, i)                                                           \
  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), \
      "+f"(c[i + 6]), "+f"(c[i + 7])
#define RUDDER_ACCUMULATORS_16(c) RUDDER_ACCUMULATORS_8(c, 0), RUDDER_ACCUMULATORS_8(c, 8)
#define RUDDER_ACCUMULATORS_32(c)                                                         \
  RUDDER_ACCUMULATORS_8(c, 0), RUDDER_ACCUMULATORS_8(c, 8), RUDDER_ACCUMULATORS_8(c, 16), \
      RUDDER_ACCUMULATORS_8(c, 24)
#define RUDDER_ACCUMULATORS_64(c)                                                        \
  RUDDER_ACCUMULATORS_32(c), RUDDER_ACCUMULATORS_8(c, 32), RUDDER_ACCUMULATORS_8(c, 40), \
      RUDDER_ACCUMULATORS_8(c, 48), RUDDER_ACCUMULATORS_8(c, 56)

// c = A . B^T (+ c), both by rows in shared memory: 32 bytes of k, of bf16 or e4m3. N = 32, 64 and
// 128.
template <bool kE4m3>
__device__ inline void wgmma_shared(float (&c)[16], uint64_t a, uint64_t b, bool accumulate) {
  if constexpr (kE4m3) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
        "}, %16, %17, add, 1, 1;\n}\n"
        : RUDDER_ACCUMULATORS_16(c)
        : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)));
  } else {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
        "}, %16, %17, add, 1, 1, 0, 0;\n}\n"
        : RUDDER_ACCUMULATORS_16(c)
        : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)));
  }
}
template <bool kE4m3>
__device__ inline void wgmma_shared(float (&c)[32], uint64_t a, uint64_t b, bool accumulate) {
  if constexpr (kE4m3) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, add, 1, 1;\n}\n"
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
template <bool kE4m3>
__device__ inline void wgmma_shared(float (&c)[64], uint64_t a, uint64_t b, bool accumulate) {
  if constexpr (kE4m3) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
        "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
        "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, add, 1, 1;\n}\n"
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

// c = A . B (+ c), A in registers, B in shared memory: by columns, or by rows (of B^T). N = 64 and
// 128.
template <bool kHalf, bool kByColumns>
__device__ inline void wgmma_registers(float (&c)[32], const uint32_t (&a)[4], uint64_t b,
                                       bool accumulate) {
  if constexpr (kHalf) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, {%32, %33, %34, %35}, %36, add, 1, 1, %38;\n}\n"
        : RUDDER_ACCUMULATORS_32(c)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int32_t>(accumulate)),
          "n"(kByColumns ? 1 : 0));
  } else {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, {%32, %33, %34, %35}, %36, add, 1, 1, %38;\n}\n"
        : RUDDER_ACCUMULATORS_32(c)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int32_t>(accumulate)),
          "n"(kByColumns ? 1 : 0));
  }
}
template <bool kHalf, bool kByColumns>
__device__ inline void wgmma_registers(float (&c)[64], const uint32_t (&a)[4], uint64_t b,
                                       bool accumulate) {
  if constexpr (kHalf) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
        "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63"
        "}, {%64, %65, %66, %67}, %68, add, 1, 1, %70;\n}\n"
        : RUDDER_ACCUMULATORS_64(c)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int32_t>(accumulate)),
          "n"(kByColumns ? 1 : 0));
  } else {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
        "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63"
        "}, {%64, %65, %66, %67}, %68, add, 1, 1, %70;\n}\n"
        : RUDDER_ACCUMULATORS_64(c)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int32_t>(accumulate)),
          "n"(kByColumns ? 1 : 0));
  }
}

// c = A . B^T (+ c) of e4m3, A in registers, B by rows in shared memory: k = 32, N = 128.
__device__ inline void wgmma_registers_e4m3(float (&c)[64], const uint32_t (&a)[4], uint64_t b,
                                            bool accumulate) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
      "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
      "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
      "%62, %63"
      "}, {%64, %65, %66, %67}, %68, add, 1, 1;\n}\n"
      : RUDDER_ACCUMULATORS_64(c)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int32_t>(accumulate)));
}

#undef RUDDER_ACCUMULATORS_8
#undef RUDDER_ACCUMULATORS_16
#undef RUDDER_ACCUMULATORS_32
#undef RUDDER_ACCUMULATORS_64

}  // namespace rudder::cuda
