// Sums of the products of open_experts.h: of 16 rows of an expert with one row of x, by a warp.
// Included by .cu files only.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "rudder/cuda/kernels/device_vec.cuh"
#include "rudder/cuda/kernels/experts/few_pairs_forms.cuh"
#include "rudder/cuda/kernels/experts/open_experts.h"

namespace rudder::cuda {

constexpr int kRows = 16;   // of W, an instruction's
constexpr int kPiece = 64;  // bytes of a row that the four lanes of a group bring at a time

// Past L1, as nothing is read twice; the rest of the lines comes along to L2.
__device__ __forceinline__ uint4 load_weight(const char* address) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address));
  return v;
}

// c[16 rows x 8 columns] += the four bytes a lane has of rows g and g + 8, g = lane / 4, times
// those of column g. Which inputs an instruction adds is free as long as both sides agree.
template <bool kFp8>
__device__ __forceinline__ void mma(float (&c)[4], uint32_t low0, uint32_t high0, uint32_t low1,
                                    uint32_t high1, uint32_t x0, uint32_t x1) {
  if constexpr (kFp8) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(low0), "r"(high0), "r"(low1), "r"(high1), "r"(x0), "r"(x1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(low0), "r"(high0), "r"(low1), "r"(high1), "r"(x0), "r"(x1));
  }
}

// The sums of 16 rows with one x, whose column is the first of the instruction's eight: lanes of
// other columns have zeros. A warp takes the pieces first, first + step, ... of the rows, and asks
// for kAhead of them in front of the one that it multiplies. Of W in bf16 or e4m3.
template <bool kFp8, int kAhead>
class WideSums {
 public:
  // Asks for the first pieces.
  __device__ void begin(const OpenWeight& weight, const FewRows& rows, int first, int step) {
    row_bytes_ = static_cast<int32_t>(weight.in) * (kFp8 ? 1 : 2);
    stride_ = step * kPiece;
    at_ = first * kPiece + 16 * static_cast<int32_t>(threadIdx.x % 4);
    const int64_t row = rows.expert * weight.out + rows.first + threadIdx.x % 32 / 4;
    low_ = static_cast<const char*>(weight.weight) + row * row_bytes_;
    to_high_ = (rows.second - rows.first) * row_bytes_;
#pragma unroll
    for (int u = 0; u < kAhead; ++u) ask(u, at_ + u * stride_);
#pragma unroll
    for (int i = 0; i < 4; ++i) c_[0][i] = c_[kChains - 1][i] = 0;
  }

  // x: the bytes of the row.
  __device__ void run(const char* x) {
    for (; at_ < row_bytes_ + 16 * static_cast<int32_t>(threadIdx.x % 4); at_ += kAhead * stride_) {
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const int32_t at = at_ + u * stride_;
        const bool has_it = threadIdx.x % 32 < 4 && at < row_bytes_;
        const uint4 v = has_it ? *reinterpret_cast<const uint4*>(x + at) : make_uint4(0, 0, 0, 0);
        mma<kFp8>(c_[0], low_pieces_[u].x, high_pieces_[u].x, low_pieces_[u].y, high_pieces_[u].y,
                  v.x, v.y);
        mma<kFp8>(c_[kChains - 1], low_pieces_[u].z, high_pieces_[u].z, low_pieces_[u].w,
                  high_pieces_[u].w, v.z, v.w);
        ask(u, at + kAhead * stride_);
      }
    }
  }

  // Of the lanes that are the first of a group of four, rows g and g + 8; the others have zeros.
  __device__ float low() const {
    return of_chains(0);
  }
  __device__ float high() const {
    return of_chains(2);
  }

 private:
  // Sums of e4m3 are two, of the halves of pieces: an instruction of it is several, so that one
  // that waits for the one before it waits long. Of bf16 there are no registers for that.
  static constexpr int kChains = kFp8 ? 2 : 1;

  __device__ float of_chains(int i) const {
    return kChains == 1 ? c_[0][i] : c_[0][i] + c_[kChains - 1][i];
  }
  __device__ __forceinline__ void ask(int u, int32_t at) {
    const bool inside = at < row_bytes_;
    low_pieces_[u] = inside ? load_weight(low_ + at) : make_uint4(0, 0, 0, 0);
    high_pieces_[u] = inside ? load_weight(low_ + to_high_ + at) : make_uint4(0, 0, 0, 0);
  }

  const char* low_;
  int32_t to_high_;  // from a row of the first eight to that of the others, in bytes, as the next
  int32_t row_bytes_;
  int32_t stride_;
  int32_t at_;
  uint4 low_pieces_[kAhead];
  uint4 high_pieces_[kAhead];
  float c_[kChains][4];
};

// The same of W in codes, whose pieces are chunks.
template <int kAhead>
class CodeSums {
 public:
  __device__ void begin(const OpenWeight& weight, const FewRows& rows, int first, int step) {
    chunks_ = static_cast<int32_t>(code_chunks(weight.in));
    row_bytes_ = 2 * static_cast<int32_t>(weight.in);
    step_ = step;
    at_ = first;
    chunk_bytes_ = static_cast<int32_t>(weight.out) / kCodeRows * kCodeBlockBytes;
    low_ = static_cast<const uint8_t*>(weight.weight) +
           int64_t{rows.expert} * chunks_ * chunk_bytes_ + rows.first / kCodeRows * kCodeBlockBytes;
    to_high_ = (rows.second - rows.first) / kCodeRows * kCodeBlockBytes;
#pragma unroll
    for (int u = 0; u < kAhead; ++u) ask(u, at_ + u * step_);
#pragma unroll
    for (float& sum : c_) sum = 0;
  }

  __device__ void run(const char* x) {
    for (; at_ < chunks_; at_ += kAhead * step_) {
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const int32_t chunk = at_ + u * step_;
        if (chunk < chunks_) multiply(u, x, chunk);
        ask(u, chunk + kAhead * step_);
      }
    }
  }

  __device__ float low() const {
    return c_[0];
  }
  __device__ float high() const {
    return c_[2];
  }

 private:
  __device__ __forceinline__ void ask(int u, int32_t chunk) {
    if (chunk >= chunks_) return;
    const uint8_t* const from = low_ + chunk * chunk_bytes_;
    FewCodes::load_blocks(from, from + to_high_, static_cast<int>(threadIdx.x % 32), parts_[u]);
  }
  // Lane t of the first four has group t of the chunk's inputs.
  __device__ __forceinline__ void multiply(int u, const char* x, int32_t chunk) {
    const int32_t at =
        chunk * FewCodes::kRowBytes + 2 * kCodeGroup * static_cast<int32_t>(threadIdx.x % 4);
    const bool has_it = threadIdx.x % 32 < 4 && at < row_bytes_;
#pragma unroll
    for (int i = 0; i < FewCodes::kSteps; ++i) {
      const uint4 v =
          has_it ? *reinterpret_cast<const uint4*>(x + at + 16 * i) : make_uint4(0, 0, 0, 0);
      uint32_t w[2][4];
      FewCodes::operands(parts_[u], i, w);
      FewCodes::multiply(c_, w[0], v.x, v.y);
      FewCodes::multiply(c_, w[1], v.z, v.w);
    }
  }

  const uint8_t* low_;
  int32_t to_high_;
  int32_t chunk_bytes_;
  int32_t row_bytes_;  // of x
  int32_t chunks_;
  int32_t step_;
  int32_t at_;
  FewCodes::Part parts_[kAhead];
  float c_[4];
};

template <ExpertForm kForm, int kAhead>
using TokenSums = std::conditional_t<kForm == ExpertForm::kE2m1, CodeSums<kAhead>,
                                     WideSums<kForm == ExpertForm::kE4m3, kAhead>>;

__device__ inline float bias_of_row(const OpenWeight& weight, int64_t row) {
  return weight.bias == nullptr ? 0.0f
                                : __bfloat162float(static_cast<const Bf16*>(weight.bias)[row]);
}

// By what a row's sum is multiplied, beside what x is.
template <ExpertForm kForm>
__device__ inline float scale_of(const OpenWeight& weight, int64_t row) {
  if constexpr (kForm == ExpertForm::kE4m3) return weight.w_scale[row];
  return kForm == ExpertForm::kE2m1 ? kCodeUnit : 1.0f;
}

// What the end of a tile needs of a row, asked for ahead.
struct RowTerms {
  float scale = 0;
  float bias = 0;

  __device__ float of(float sum, float x_scale) const { return sum * (x_scale * scale) + bias; }
};
template <ExpertForm kForm>
__device__ inline RowTerms terms_of(const OpenWeight& weight, int64_t row) {
  return {scale_of<kForm>(weight, row), bias_of_row(weight, row)};
}

}  // namespace rudder::cuda
