// Codes of LowBits as numbers in registers. Included by .cu files only.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "rudder/cuda/kernels/products/low_bits.h"

namespace rudder::cuda {

// (word & mask) | 2^7 as two bf16: as C++ it would take two instructions.
__device__ __forceinline__ uint32_t with_exponent(uint32_t word, uint32_t mask) {
  uint32_t out;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(word), "r"(mask), "r"(0x43004300u));
  return out;
}

// The codes of a lane of 16 k: 8 of them, of rows g and g + 8 (wgmma.cuh), as
// pairs for a[0] .. a[3].
template <LowCode kCode>
struct LowCodes;

template <>
struct LowCodes<LowCode::kU4> {
  static constexpr int kWords = 1;
  static constexpr int kCodeBytes = low_code_bytes(LowCode::kU4);  // of a block
  // 128 + code, which bf16 has: two codes that lie 16 bits apart, at once.
  __device__ __forceinline__ static __nv_bfloat162 shifted(const uint32_t* words, int i) {
    const uint32_t pair = with_exponent(words[0] >> (4 * i), 0x000f000fu);
    return reinterpret_cast<const __nv_bfloat162&>(pair);
  }
  static constexpr float kShift = 128.0f;
};

template <>
struct LowCodes<LowCode::kI8> {
  static constexpr int kWords = 2;
  static constexpr int kCodeBytes = low_code_bytes(LowCode::kI8);
  // The lower seven bits above 128, less 128 or 256 as the sign says.
  __device__ __forceinline__ static __nv_bfloat162 shifted(const uint32_t* words, int i) {
    const uint32_t word = words[i / 2] >> (8 * (i % 2));
    const uint32_t low = with_exponent(word, 0x007f007fu);
    const uint32_t sign = with_exponent(word, 0x00800080u);
    return __hsub2(reinterpret_cast<const __nv_bfloat162&>(low),
                   reinterpret_cast<const __nv_bfloat162&>(sign));
  }
  static constexpr float kShift = 0.0f;
};

template <>
struct LowCodes<LowCode::kE4M3> {
  static constexpr int kWords = 2;
  static constexpr int kCodeBytes = low_code_bytes(LowCode::kE4M3);
  // As bits of bf16 they are 2^-120 of the number, those below the least normal one too.
  __device__ __forceinline__ static __nv_bfloat162 shifted(const uint32_t* words, int i) {
    const uint32_t word = words[i / 2] >> (8 * (i % 2));
    const uint32_t pair = (word & 0x007f007fu) << 4 | (word & 0x00800080u) << 8;
    constexpr uint32_t kFactor = 0x7b807b80u;  // 2^120
    return __hmul2(reinterpret_cast<const __nv_bfloat162&>(pair),
                   reinterpret_cast<const __nv_bfloat162&>(kFactor));
  }
  static constexpr float kShift = 0.0f;
};

__device__ __forceinline__ int64_t chunks_of(int64_t in) {
  return (in + kLowChunk - 1) / kLowChunk;
}

__device__ __forceinline__ uint32_t bits_of(__nv_bfloat162 pair) {
  return reinterpret_cast<const uint32_t&>(pair);
}

// What a row's group multiplies and takes off, of `shifted` codes: number =
// scale * shifted - less.
struct LowScale {
  float scale;
  float less;
};
template <LowCode kCode>
__device__ __forceinline__ LowScale low_scale(__half2 pair, bool is_zero) {
  const float scale = __low2float(pair);
  const float offset = __high2float(pair);
  return {scale, fmaf(scale, LowCodes<kCode>::kShift, is_zero ? scale * offset : offset)};
}
// Rounded once.
__device__ __forceinline__ uint32_t scaled(__nv_bfloat162 shifted, const LowScale& by) {
  const uint32_t pair = bits_of(shifted);
  const float low = fmaf(__uint_as_float(pair << 16), by.scale, -by.less);
  const float high = fmaf(__uint_as_float(pair & 0xffff0000u), by.scale, -by.less);
  return bits_of(__floats2bfloat162_rn(low, high));
}

}  // namespace rudder::cuda
