// wgmma of a product whose operands both lie in shared memory by rows (wgmma.cuh): c[64 x kCols]
// += A . B^T over 32 bytes of k, of bf16, or of e4m3 with up to 192 columns. Included by .cu files
// only.
#pragma once

#include <cstdint>

namespace rudder::cuda {

template <int kCols, bool kFp8>
struct ProductMma;

#define RUDDER_C8(i)                                                                          \
  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), \
      "+f"(c[i + 6]), "+f"(c[i + 7])

template <>
struct ProductMma<32, true> {
  __device__ static void add(float (&c)[16], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
        "}, %16, %17, 1, 1, 1;"
        : RUDDER_C8(0), RUDDER_C8(8)
        : "l"(a), "l"(b));
  }
};

template <>
struct ProductMma<32, false> {
  __device__ static void add(float (&c)[16], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
        "}, %16, %17, 1, 1, 1, 0, 0;"
        : RUDDER_C8(0), RUDDER_C8(8)
        : "l"(a), "l"(b));
  }
};

template <>
struct ProductMma<48, true> {
  __device__ static void add(float (&c)[24], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n48k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23"
        "}, %24, %25, 1, 1, 1;"
        : RUDDER_C8(0), RUDDER_C8(8), RUDDER_C8(16)
        : "l"(a), "l"(b));
  }
};

template <>
struct ProductMma<48, false> {
  __device__ static void add(float (&c)[24], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23"
        "}, %24, %25, 1, 1, 1, 0, 0;"
        : RUDDER_C8(0), RUDDER_C8(8), RUDDER_C8(16)
        : "l"(a), "l"(b));
  }
};

template <>
struct ProductMma<64, true> {
  __device__ static void add(float (&c)[32], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, 1, 1, 1;"
        : RUDDER_C8(0), RUDDER_C8(8), RUDDER_C8(16), RUDDER_C8(24)
        : "l"(a), "l"(b));
  }
};

template <>
struct ProductMma<64, false> {
  __device__ static void add(float (&c)[32], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, 1, 1, 1, 0, 0;"
        : RUDDER_C8(0), RUDDER_C8(8), RUDDER_C8(16), RUDDER_C8(24)
        : "l"(a), "l"(b));
  }
};

template <>
struct ProductMma<80, true> {
  __device__ static void add(float (&c)[40], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n80k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
        "%34, %35, %36, %37, %38, %39"
        "}, %40, %41, 1, 1, 1;"
        : RUDDER_C8(0), RUDDER_C8(8), RUDDER_C8(16), RUDDER_C8(24), RUDDER_C8(32)
        : "l"(a), "l"(b));
  }
};

template <>
struct ProductMma<80, false> {
  __device__ static void add(float (&c)[40], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n80k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
        "%34, %35, %36, %37, %38, %39"
        "}, %40, %41, 1, 1, 1, 0, 0;"
        : RUDDER_C8(0), RUDDER_C8(8), RUDDER_C8(16), RUDDER_C8(24), RUDDER_C8(32)
        : "l"(a), "l"(b));
  }
};

template <>
struct ProductMma<96, true> {
  __device__ static void add(float (&c)[48], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n96k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
        "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
        "}, %48, %49, 1, 1, 1;"
        : RUDDER_C8(0), RUDDER_C8(8), RUDDER_C8(16), RUDDER_C8(24), RUDDER_C8(32), RUDDER_C8(40)
        : "l"(a), "l"(b));
  }
};

template <>
struct ProductMma<96, false> {
  __device__ static void add(float (&c)[48], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
        "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
        "}, %48, %49, 1, 1, 1, 0, 0;"
        : RUDDER_C8(0), RUDDER_C8(8), RUDDER_C8(16), RUDDER_C8(24), RUDDER_C8(32), RUDDER_C8(40)
        : "l"(a), "l"(b));
  }
};

template <>
struct ProductMma<112, true> {
  __device__ static void add(float (&c)[56], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n112k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
        "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
        "%50, %51, %52, %53, %54, %55"
        "}, %56, %57, 1, 1, 1;"
        : RUDDER_C8(0), RUDDER_C8(8), RUDDER_C8(16), RUDDER_C8(24), RUDDER_C8(32), RUDDER_C8(40),
          RUDDER_C8(48)
        : "l"(a), "l"(b));
  }
};

template <>
struct ProductMma<112, false> {
  __device__ static void add(float (&c)[56], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n112k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
        "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
        "%50, %51, %52, %53, %54, %55"
        "}, %56, %57, 1, 1, 1, 0, 0;"
        : RUDDER_C8(0), RUDDER_C8(8), RUDDER_C8(16), RUDDER_C8(24), RUDDER_C8(32), RUDDER_C8(40),
          RUDDER_C8(48)
        : "l"(a), "l"(b));
  }
};

template <>
struct ProductMma<128, true> {
  __device__ static void add(float (&c)[64], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
        "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
        "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, 1, 1, 1;"
        : RUDDER_C8(0), RUDDER_C8(8), RUDDER_C8(16), RUDDER_C8(24), RUDDER_C8(32), RUDDER_C8(40),
          RUDDER_C8(48), RUDDER_C8(56)
        : "l"(a), "l"(b));
  }
};

template <>
struct ProductMma<128, false> {
  __device__ static void add(float (&c)[64], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
        "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
        "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, 1, 1, 1, 0, 0;"
        : RUDDER_C8(0), RUDDER_C8(8), RUDDER_C8(16), RUDDER_C8(24), RUDDER_C8(32), RUDDER_C8(40),
          RUDDER_C8(48), RUDDER_C8(56)
        : "l"(a), "l"(b));
  }
};

template <>
struct ProductMma<160, true> {
  __device__ static void add(float (&c)[80], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n160k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
        "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
        "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "
        "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, "
        "%70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
        "}, %80, %81, 1, 1, 1;"
        : RUDDER_C8(0), RUDDER_C8(8), RUDDER_C8(16), RUDDER_C8(24), RUDDER_C8(32), RUDDER_C8(40),
          RUDDER_C8(48), RUDDER_C8(56), RUDDER_C8(64), RUDDER_C8(72)
        : "l"(a), "l"(b));
  }
};

template <>
struct ProductMma<160, false> {
  __device__ static void add(float (&c)[80], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
        "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
        "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, "
        "%66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
        "}, %80, %81, 1, 1, 1, 0, 0;"
        : RUDDER_C8(0), RUDDER_C8(8), RUDDER_C8(16), RUDDER_C8(24), RUDDER_C8(32), RUDDER_C8(40),
          RUDDER_C8(48), RUDDER_C8(56), RUDDER_C8(64), RUDDER_C8(72)
        : "l"(a), "l"(b));
  }
};

template <>
struct ProductMma<192, true> {
  __device__ static void add(float (&c)[96], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n192k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
        "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
        "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "
        "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, "
        "%70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, "
        "%87, %88, %89, %90, %91, %92, %93, %94, %95"
        "}, %96, %97, 1, 1, 1;"
        : RUDDER_C8(0), RUDDER_C8(8), RUDDER_C8(16), RUDDER_C8(24), RUDDER_C8(32), RUDDER_C8(40),
          RUDDER_C8(48), RUDDER_C8(56), RUDDER_C8(64), RUDDER_C8(72), RUDDER_C8(80), RUDDER_C8(88)
        : "l"(a), "l"(b));
  }
};

template <>
struct ProductMma<192, false> {
  __device__ static void add(float (&c)[96], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
        "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
        "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, "
        "%66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "
        "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
        "}, %96, %97, 1, 1, 1, 0, 0;"
        : RUDDER_C8(0), RUDDER_C8(8), RUDDER_C8(16), RUDDER_C8(24), RUDDER_C8(32), RUDDER_C8(40),
          RUDDER_C8(48), RUDDER_C8(56), RUDDER_C8(64), RUDDER_C8(72), RUDDER_C8(80), RUDDER_C8(88)
        : "l"(a), "l"(b));
  }
};

template <>
struct ProductMma<224, false> {
  __device__ static void add(float (&c)[112], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n224k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
        "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
        "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, "
        "%66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "
        "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, "
        "%98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
        "}, %112, %113, 1, 1, 1, 0, 0;"
        : RUDDER_C8(0), RUDDER_C8(8), RUDDER_C8(16), RUDDER_C8(24), RUDDER_C8(32), RUDDER_C8(40),
          RUDDER_C8(48), RUDDER_C8(56), RUDDER_C8(64), RUDDER_C8(72), RUDDER_C8(80), RUDDER_C8(88),
          RUDDER_C8(96), RUDDER_C8(104)
        : "l"(a), "l"(b));
  }
};

template <>
struct ProductMma<256, false> {
  __device__ static void add(float (&c)[128], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
        "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
        "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, "
        "%66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "
        "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, "
        "%98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "
        "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, "
        "%124, %125, %126, %127"
        "}, %128, %129, 1, 1, 1, 0, 0;"
        : RUDDER_C8(0), RUDDER_C8(8), RUDDER_C8(16), RUDDER_C8(24), RUDDER_C8(32), RUDDER_C8(40),
          RUDDER_C8(48), RUDDER_C8(56), RUDDER_C8(64), RUDDER_C8(72), RUDDER_C8(80), RUDDER_C8(88),
          RUDDER_C8(96), RUDDER_C8(104), RUDDER_C8(112), RUDDER_C8(120)
        : "l"(a), "l"(b));
  }
};

#undef RUDDER_C8

}  // namespace rudder::cuda
