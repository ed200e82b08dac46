// wgmma whose A operand is in registers: c[64 x kCols] = or += A . B^T over 16
// of k, of bf16; B lies in shared memory by rows (wgmma.cuh). A thread holds,
// with w = warp, g = lane / 4, t = lane % 4: a[0] at row 16w + g, columns 2t
// and the next; a[1] the same of row 16w + g + 8; a[2] and a[3] those of
// columns 2t + 8 and the next. Included by .cu files only.
#pragma once

#include <cstdint>

namespace rudder::cuda {

// kAdds: to what c is; else c is not read.
template <int kCols, bool kAdds>
struct RegisterMma;

#define RUDDER_C8(i)                                                                          \
  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), \
      "+f"(c[i + 6]), "+f"(c[i + 7])
#define RUDDER_A4 "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])

template <bool kAdds>
struct RegisterMma<8, kAdds> {
  __device__ __forceinline__ static void run(float (&c)[4], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "{ .reg .pred adds; setp.ne.b32 adds, %9, 0; "
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3"
        "}, {%4, %5, %6, %7}, %8, adds, 1, 1, 0; }"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : RUDDER_A4, "l"(b), "n"(kAdds ? 1 : 0));
  }
};

template <bool kAdds>
struct RegisterMma<16, kAdds> {
  __device__ __forceinline__ static void run(float (&c)[8], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "{ .reg .pred adds; setp.ne.b32 adds, %13, 0; "
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7"
        "}, {%8, %9, %10, %11}, %12, adds, 1, 1, 0; }"
        : RUDDER_C8(0)
        : RUDDER_A4, "l"(b), "n"(kAdds ? 1 : 0));
  }
};

template <bool kAdds>
struct RegisterMma<32, kAdds> {
  __device__ __forceinline__ static void run(float (&c)[16], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "{ .reg .pred adds; setp.ne.b32 adds, %21, 0; "
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
        "}, {%16, %17, %18, %19}, %20, adds, 1, 1, 0; }"
        : RUDDER_C8(0), RUDDER_C8(8)
        : RUDDER_A4, "l"(b), "n"(kAdds ? 1 : 0));
  }
};

template <bool kAdds>
struct RegisterMma<64, kAdds> {
  __device__ __forceinline__ static void run(float (&c)[32], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "{ .reg .pred adds; setp.ne.b32 adds, %37, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
        "%30, %31"
        "}, {%32, %33, %34, %35}, %36, adds, 1, 1, 0; }"
        : RUDDER_C8(0), RUDDER_C8(8), RUDDER_C8(16), RUDDER_C8(24)
        : RUDDER_A4, "l"(b), "n"(kAdds ? 1 : 0));
  }
};

template <bool kAdds>
struct RegisterMma<128, kAdds> {
  __device__ __forceinline__ static void run(float (&c)[64], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "{ .reg .pred adds; setp.ne.b32 adds, %69, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
        "%30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "
        "%46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63"
        "}, {%64, %65, %66, %67}, %68, adds, 1, 1, 0; }"
        : RUDDER_C8(0), RUDDER_C8(8), RUDDER_C8(16), RUDDER_C8(24), RUDDER_C8(32), RUDDER_C8(40),
          RUDDER_C8(48), RUDDER_C8(56)
        : RUDDER_A4, "l"(b), "n"(kAdds ? 1 : 0));
  }
};

template <bool kAdds>
struct RegisterMma<256, kAdds> {
  __device__ __forceinline__ static void run(float (&c)[128], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "{ .reg .pred adds; setp.ne.b32 adds, %133, 0; "
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "
        "%111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "
        "%127"
        "}, {%128, %129, %130, %131}, %132, adds, 1, 1, 0; }"
        : RUDDER_C8(0), RUDDER_C8(8), RUDDER_C8(16), RUDDER_C8(24), RUDDER_C8(32), RUDDER_C8(40),
          RUDDER_C8(48), RUDDER_C8(56), RUDDER_C8(64), RUDDER_C8(72), RUDDER_C8(80), RUDDER_C8(88),
          RUDDER_C8(96), RUDDER_C8(104), RUDDER_C8(112), RUDDER_C8(120)
        : RUDDER_A4, "l"(b), "n"(kAdds ? 1 : 0));
  }
};

// c[64 x kCols] += A . B^T over 32 of k, of whole numbers of 8 bits: a[0] has
// columns 4t to 4t + 3 of row 16w + g, a[1] those of row 16w + g + 8; a[2] and
// a[3] the same of columns 16 behind.
template <int kCols>
struct RegisterMmaS8;

#define RUDDER_I8(i)                                                                          \
  "+r"(c[i]), "+r"(c[i + 1]), "+r"(c[i + 2]), "+r"(c[i + 3]), "+r"(c[i + 4]), "+r"(c[i + 5]), \
      "+r"(c[i + 6]), "+r"(c[i + 7])

template <>
struct RegisterMmaS8<64> {
  __device__ __forceinline__ static void add(int32_t (&c)[32], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
        "%30, %31"
        "}, {%32, %33, %34, %35}, %36, 1;"
        : RUDDER_I8(0), RUDDER_I8(8), RUDDER_I8(16), RUDDER_I8(24)
        : RUDDER_A4, "l"(b));
  }
};

template <>
struct RegisterMmaS8<128> {
  __device__ __forceinline__ static void add(int32_t (&c)[64], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
        "%30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "
        "%46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63"
        "}, {%64, %65, %66, %67}, %68, 1;"
        : RUDDER_I8(0), RUDDER_I8(8), RUDDER_I8(16), RUDDER_I8(24), RUDDER_I8(32), RUDDER_I8(40),
          RUDDER_I8(48), RUDDER_I8(56)
        : RUDDER_A4, "l"(b));
  }
};

template <>
struct RegisterMmaS8<256> {
  __device__ __forceinline__ static void add(int32_t (&c)[128], const uint32_t (&a)[4],
                                             uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n256k32.s32.s8.s8 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "
        "%111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "
        "%127"
        "}, {%128, %129, %130, %131}, %132, 1;"
        : RUDDER_I8(0), RUDDER_I8(8), RUDDER_I8(16), RUDDER_I8(24), RUDDER_I8(32), RUDDER_I8(40),
          RUDDER_I8(48), RUDDER_I8(56), RUDDER_I8(64), RUDDER_I8(72), RUDDER_I8(80), RUDDER_I8(88),
          RUDDER_I8(96), RUDDER_I8(104), RUDDER_I8(112), RUDDER_I8(120)
        : RUDDER_A4, "l"(b));
  }
};

#undef RUDDER_I8
#undef RUDDER_A4
#undef RUDDER_C8

}  // namespace rudder::cuda
