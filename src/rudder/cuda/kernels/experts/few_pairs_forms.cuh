// What a lane of few_pairs.cuh has of 16 rows of W and a chunk of their inputs, by form: how it
// loads that, where x lies so that the lane finds the same inputs of a token, and the products.
// Lane (g, t) of a warp, g = lane / 4, has rows g and g + 8 of operand A, and token g of operand B.
// Which inputs the tensor cores add in one instruction is the form's choice, as long as W and x
// have the same ones. Included by .cu files only.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "rudder/cuda/kernels/experts/expert_codes.cuh"
#include "rudder/cuda/kernels/experts/expert_product.h"
#include "rudder/cuda/kernels/products/low_bits.cuh"
#include "rudder/cuda/kernels/products/low_mma.cuh"

namespace rudder::cuda {

// The rows of 16 that a lane has, of the expert's, as W lies: of W in rows; of blocks of 8 rows,
// the blocks; of LowBits, the sixteenth.
struct FewRows {
  int32_t expert;
  int32_t unit;    // the 16 of the expert
  int32_t first;   // row of g = 0
  int32_t second;  // of g + 8 = 8
};

// Past L1, and nothing is read twice.
__device__ __forceinline__ uint4 load_weight_16(const void* from) {
  uint4 out;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
               : "l"(from));
  return out;
}
__device__ __forceinline__ uint32_t load_weight_4(const void* from) {
  uint32_t out;
  asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(out) : "l"(from));
  return out;
}
__device__ __forceinline__ uint32_t load_weight_1(const void* from) {
  uint32_t out;
  asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(out) : "l"(from));
  return out;
}
// Where a warp reads tokens: `at` of the lane, of the chunk; a token's row is `stride` behind the
// one in front of it.
struct FewTokens {
  uint32_t at;
  uint32_t stride;
  int eights;  // that have a token

  __device__ __forceinline__ uint32_t of(int eight) const {
    return at + static_cast<uint32_t>(8 * eight) * stride;
  }
};

template <int kUnits, int kEights>
using FewSums = float[kUnits][kEights][4];

// Two instructions' operands of W at a time, of which a lane has 16 bytes of x: words 0 and 1 for
// the first, 2 and 3 for the second.
template <typename Form, int kUnits, int kEights>
__device__ __forceinline__ void multiply_steps(const typename Form::Part (&parts)[kUnits],
                                               const FewTokens& x, FewSums<kUnits, kEights>& sums) {
#pragma unroll
  for (int i = 0; i < Form::kSteps; ++i) {
    uint32_t a[kUnits][2][4];
#pragma unroll
    for (int u = 0; u < kUnits; ++u) Form::operands(parts[u], i, a[u]);
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      if (n >= x.eights) break;
      uint32_t b[4];
      load_shared_16(b, x.of(n) + static_cast<uint32_t>(i) * 64);
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        Form::multiply(sums[u][n], a[u][0], b[0], b[1]);
        Form::multiply(sums[u][n], a[u][1], b[2], b[3]);
      }
    }
  }
}

// expert_codes.h: lane t has group t of a chunk, all 32 inputs of its rows.
struct FewCodes {
  static constexpr int kChunk = kCodeChunk;     // inputs
  static constexpr int kRowBytes = 2 * kChunk;  // of x
  static constexpr int kPadBytes = 64;          // so that two tokens lie in different banks
  static constexpr int kSteps = 4;
  static constexpr bool kScalesRows = false;
  static constexpr float kUnit = kCodeUnit;

  struct Part {
    uint4 codes[2];
    uint32_t scales[2];
  };
  // Piece 4 t + i of 16 bytes of a chunk of x is lane t's i-th.
  __device__ __forceinline__ static int index_of(int piece) { return piece % 4 * 4 + piece / 4; }
  __device__ __forceinline__ static uint32_t lane_offset(int lane, uint32_t stride) {
    return static_cast<uint32_t>(lane / 4) * stride + static_cast<uint32_t>(lane % 4) * 16;
  }
  __device__ __forceinline__ static void load(const ExpertProductParams& p, const FewRows& rows,
                                              int32_t chunk, int lane, Part& part) {
    const auto blocks = static_cast<int32_t>(p.out / kCodeRows);
    const auto chunks = static_cast<int32_t>(code_chunks(p.in));
    const int64_t first = (int64_t{rows.expert} * chunks + chunk) * blocks;
    const auto* const from = static_cast<const uint8_t*>(p.weight);
    load_blocks(from + (first + rows.first / kCodeRows) * kCodeBlockBytes,
                from + (first + rows.second / kCodeRows) * kCodeBlockBytes, lane, part);
  }
  // From the blocks of the first eight rows and of the others.
  __device__ __forceinline__ static void load_blocks(const uint8_t* of_first,
                                                     const uint8_t* of_second, int lane,
                                                     Part& part) {
    const int index = kCodeRows * (lane % 4) + lane / 4;
    part.codes[0] = load_weight_16(of_first + 16 * index);
    part.codes[1] = load_weight_16(of_second + 16 * index);
    part.scales[0] = load_weight_1(of_first + kCodeScalesAt + index);
    part.scales[1] = load_weight_1(of_second + kCodeScalesAt + index);
  }
  __device__ __forceinline__ static void operands(const Part& part, int i, uint32_t (&a)[2][4]) {
    const uint4 first = code_numbers(word_of(part.codes[0], i), code_factor(part.scales[0]));
    const uint4 second = code_numbers(word_of(part.codes[1], i), code_factor(part.scales[1]));
    a[0][0] = first.x;
    a[0][1] = second.x;
    a[0][2] = first.y;
    a[0][3] = second.y;
    a[1][0] = first.z;
    a[1][1] = second.z;
    a[1][2] = first.w;
    a[1][3] = second.w;
  }
  __device__ __forceinline__ static void multiply(float* sum, const uint32_t (&a)[4], uint32_t b0,
                                                  uint32_t b1) {
    multiply_add(sum, a, b0, b1);
  }
  template <int kUnits, int kEights>
  __device__ __forceinline__ static void multiply_chunk(const ExpertProductParams& /*p*/,
                                                        const Part (&parts)[kUnits],
                                                        const FewTokens& x, int /*lane*/,
                                                        FewSums<kUnits, kEights>& c) {
    multiply_steps<FewCodes, kUnits, kEights>(parts, x, c);
  }

 private:
  __device__ __forceinline__ static uint32_t word_of(const uint4& words, int i) {
    return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
  }
};

// LowBits (low_bits.h), whose chunks lie as lanes read them. kParts of a chunk have sums that are
// scaled by themselves, as in low_gemv.cuh.
template <LowCode kCode, int kParts>
struct FewLow {
  static constexpr int kChunk = kLowChunk;
  static constexpr int kRowBytes = 2 * kChunk;
  static constexpr int kPadBytes = 16;  // rows of ldmatrix, in different banks
  static constexpr bool kScalesRows = true;
  static constexpr float kUnit = 1.0f;
  static constexpr int kWords = LowCodes<kCode>::kWords;  // of 16 inputs
  static constexpr int kPieces = 2 * kWords;
  static constexpr int kScales = kParts == 8 ? 2 : 1;

  struct Part {
    uint4 codes[kPieces];
    uint32_t pairs[2 * kScales];
  };
  __device__ __forceinline__ static int index_of(int piece) { return piece; }
  __device__ __forceinline__ static uint32_t lane_offset(int lane, uint32_t stride) {
    return static_cast<uint32_t>(lane % 8) * stride + static_cast<uint32_t>(lane / 8) * 16;
  }
  __device__ __forceinline__ static void load(const ExpertProductParams& p, const FewRows& rows,
                                              int32_t chunk, int lane, Part& part) {
    constexpr int kBlockUnits = kLowBlockRows / 16;
    const int64_t chunks = chunks_of(p.in);
    const auto row_blocks = static_cast<int32_t>((p.out + kLowBlockRows - 1) / kLowBlockRows);
    const int32_t groups = kLowChunk / p.low.group;
    const int32_t block_bytes =
        LowCodes<kCode>::kCodeBytes + kLowBlockRows * groups * kLowPairBytes;
    const int64_t block =
        (int64_t{rows.expert} * row_blocks + rows.unit / kBlockUnits) * chunks + chunk;
    const int in_block = rows.unit % kBlockUnits;
    const auto* const from = static_cast<const uint8_t*>(p.weight) + block * block_bytes;
    const uint8_t* const codes = from + in_block * 512 + lane * 16;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) part.codes[i] = load_weight_16(codes + i * 2048);
    // Lane t of four has the scales of group t of as many.
    const int group = lane % 4 * min(4, groups) / 4;
    const uint8_t* const scales =
        from + LowCodes<kCode>::kCodeBytes +
        (group * kLowBlockRows + in_block * 16 + lane / 4) * kLowPairBytes;
#pragma unroll
    for (int i = 0; i < kScales; ++i) {
      const uint8_t* const of_group = scales + 4 * i * kLowBlockRows * kLowPairBytes;
      part.pairs[2 * i] = load_weight_4(of_group);
      part.pairs[2 * i + 1] = load_weight_4(of_group + 8 * kLowPairBytes);
    }
  }
  template <int kUnits, int kEights>
  __device__ __forceinline__ static void multiply_chunk(const ExpertProductParams& p,
                                                        const Part (&parts)[kUnits],
                                                        const FewTokens& x, int lane,
                                                        FewSums<kUnits, kEights>& c) {
    FewSums<kUnits, kEights> sums = {};
    float ones[kEights][4] = {};
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      uint32_t b[kEights][4];
#pragma unroll
      for (int n = 0; n < kEights; ++n) {
        if (n >= x.eights) break;
        load_inputs(b[n], x.of(n) + static_cast<uint32_t>(q) * 64);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int sixteen = 2 * q + j;
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
          uint32_t words[kWords];
#pragma unroll
          for (int w = 0; w < kWords; ++w) words[w] = word_of(parts[u], sixteen * kWords + w);
          uint32_t a[4];
#pragma unroll
          for (int k = 0; k < 4; ++k) a[k] = bits_of(LowCodes<kCode>::shifted(words, k));
#pragma unroll
          for (int n = 0; n < kEights; ++n) {
            if (n >= x.eights) break;
            multiply_add(sums[u][n], a, b[n][2 * j], b[n][2 * j + 1]);
          }
        }
#pragma unroll
        for (int n = 0; n < kEights; ++n) {
          if (n >= x.eights) break;
          add_tokens(ones[n], b[n][2 * j], b[n][2 * j + 1]);
        }
        if ((sixteen + 1) * kParts % 8 == 0) {
          scale_part<kUnits, kEights>(p, parts, (sixteen + 1) * kParts / 8 - 1, lane, sums, ones,
                                      c);
        }
      }
    }
  }

 private:
  __device__ __forceinline__ static uint32_t word_of(const Part& part, int i) {
    const uint4& four = part.codes[i / 4];
    return i % 4 == 0 ? four.x : i % 4 == 1 ? four.y : i % 4 == 2 ? four.z : four.w;
  }
  // What a part's sums come to; they begin anew.
  template <int kUnits, int kEights>
  __device__ __forceinline__ static void scale_part(const ExpertProductParams& p,
                                                    const Part (&parts)[kUnits], int part, int lane,
                                                    FewSums<kUnits, kEights>& sums,
                                                    float (&ones)[kEights][4],
                                                    FewSums<kUnits, kEights>& c) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t pair = parts[u].pairs[part / 4 * 2 + half];
        if (kParts > 1) pair = __shfl_sync(0xffffffffu, pair, (lane & ~3) | (part % 4));
        const LowScale by = low_scale<kCode>(reinterpret_cast<const __half2&>(pair), p.low.is_zero);
#pragma unroll
        for (int n = 0; n < kEights; ++n) {
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            float& sum = c[u][n][2 * half + k];
            sum = fmaf(sums[u][n][2 * half + k], by.scale, fmaf(-by.less, ones[n][k], sum));
            sums[u][n][2 * half + k] = 0;
          }
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
#pragma unroll
      for (int k = 0; k < 4; ++k) ones[n][k] = 0;
    }
  }
};

}  // namespace rudder::cuda
