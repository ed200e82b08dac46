// How a row of q becomes e4m3, for products with an fp8 cache (docs/adr/0069-e4m3-queries.md):
// times the power of two that takes its largest magnitude into [128, 256). The products of the row
// are multiplied with the one that takes it back. Included by attention_wgmma*.cu* only.
#pragma once

#include <cstdint>

namespace rudder::cuda {

// The larger of the magnitudes so far and of two bf16, each half for itself.
__device__ inline uint32_t larger_magnitudes(uint32_t so_far, uint32_t two) {
  asm("{\n.reg .b32 size;\nabs.bf16x2 size, %1;\nmax.bf16x2 %0, %0, size;\n}"
      : "+r"(so_far)
      : "r"(two));
  return so_far;
}

struct RowRounding {
  uint32_t up;  // the power of two, as a pair of bf16
  float back;   // its reciprocal

  // `top`: the row's largest magnitude, as bf16. Below an exponent of 8 the power has no bf16.
  __device__ static RowRounding of(uint32_t top) {
    const uint32_t exponent = max(top >> 7, 8u);
    return {((261 - exponent) << 7) * 0x1'0001u, __uint_as_float((exponent - 7) << 23)};
  }

  // Of four bf16; what e4m3 has no place for becomes its largest number, and NaN stays NaN.
  __device__ uint32_t operator()(uint32_t low, uint32_t high) const {
    uint32_t four;
    asm("{\n.reg .b32 low, high, x0, x1, x2, x3;\n.reg .b16 a, b;\n"
        "mul.rn.bf16x2 low, %1, %3;\nmul.rn.bf16x2 high, %2, %3;\n"
        "shl.b32 x0, low, 16;\nand.b32 x1, low, 0xffff0000;\n"
        "shl.b32 x2, high, 16;\nand.b32 x3, high, 0xffff0000;\n"
        "cvt.rn.satfinite.e4m3x2.f32 a, x1, x0;\n"
        "cvt.rn.satfinite.e4m3x2.f32 b, x3, x2;\n"
        "mov.b32 %0, {a, b};\n}"
        : "=r"(four)
        : "r"(low), "r"(high), "r"(up));
    return four;
  }
};

}  // namespace rudder::cuda
