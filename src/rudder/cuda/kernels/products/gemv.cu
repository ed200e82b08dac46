#include "rudder/cuda/kernels/products/gemv.h"

#include <cuda_bf16.h>

#include "rudder/cuda/kernels/launch.h"

namespace rudder::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kChunkBytes = 64;                   // of a row, one turn of a warp
constexpr int kTurnBytes = kWarps * kChunkBytes;  // one turn of all warps

// Weights are read once: past L1, and the rest of the lines comes along to L2.
__device__ __forceinline__ uint4 load_weight(const char* address) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address));
  return v;
}

// c[16 x 8] += a[16 x k] · b[k x 8], k = 16 of bf16 or 32 of e4m3: 4 bytes a register either way.
template <bool kFp8>
__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                    uint32_t a3, uint32_t b0, uint32_t b1) {
  if constexpr (kFp8) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

// What a lane holds of kUnroll chunks: of the weight rows g and g + 8 of each 16 (g = lane / 4),
// and of token g of each 8.
template <int kRowTiles, int kUnroll>
struct WeightPieces {
  uint4 low[kUnroll][kRowTiles];
  uint4 high[kUnroll][kRowTiles];
};
template <int kTokenTiles, int kUnroll>
struct TokenPieces {
  uint4 v[kUnroll][kTokenTiles];
};

// kIsAhead: pieces are loaded while those in front of them are multiplied.
template <int kRowTiles, int kTokenTiles, int kUnroll, bool kIsAhead, bool kFp8>
class Gemv {
 public:
  static constexpr int kRows = 16 * kRowTiles;
  static constexpr int kTokens = 8 * kTokenTiles;
  // Padded so that the lanes of a warp, 8 rows by 4 pairs of tokens, hit 32 banks.
  static constexpr int kSumStride = kRows + 4;

  __device__ Gemv(const GemvParams& p, float* sums) : p_(p), sums_(sums) {
    const int lane = threadIdx.x % 32;
    warp_ = threadIdx.x / 32;
    group_ = lane / 4;
    in_group_ = lane % 4;
    row_bytes_ = p.in * (kFp8 ? 1 : 2);
    first_row_ = int64_t{blockIdx.x} * kRows;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      // Rows past the end are read as the last row and their sums dropped.
      const int64_t low = min(first_row_ + 16 * m + group_, p.out - 1);
      const int64_t high = min(first_row_ + 16 * m + group_ + 8, p.out - 1);
      low_[m] = static_cast<const char*>(p.weight) + low * row_bytes_;
      high_[m] = static_cast<const char*>(p.weight) + high * row_bytes_;
    }
  }

  __device__ void run() {
    constexpr int64_t kStride = int64_t{kTurnBytes} * kUnroll;
    int64_t at = warp_ * kChunkBytes + 16 * in_group_;
    float c[kRowTiles][kTokenTiles][4] = {};
    WeightPieces<kRowTiles, kUnroll> w;
    TokenPieces<kTokenTiles, kUnroll> x;
    load(w, at);  // no kernel writes weights: they are on their way before the last kernel ends
    dependency_wait();
    dependency_trigger();
    load(x, at);
    for (; at - 16 * in_group_ < row_bytes_; at += kStride) {
      if constexpr (kIsAhead) {
        WeightPieces<kRowTiles, kUnroll> next_w;
        TokenPieces<kTokenTiles, kUnroll> next_x;
        load(next_w, at + kStride);
        load(next_x, at + kStride);
        multiply(c, w, x);
        w = next_w;
        x = next_x;
      } else {
        multiply(c, w, x);
        load(w, at + kStride);
        load(x, at + kStride);
      }
    }
    keep(c);
    __syncthreads();
    write();
  }

 private:
  __device__ __forceinline__ void load(WeightPieces<kRowTiles, kUnroll>& w, int64_t at) const {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t offset = at + u * kTurnBytes;
      const bool inside = offset < row_bytes_;
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        w.low[u][m] = inside ? load_weight(low_[m] + offset) : make_uint4(0, 0, 0, 0);
        w.high[u][m] = inside ? load_weight(high_[m] + offset) : make_uint4(0, 0, 0, 0);
      }
    }
  }

  __device__ __forceinline__ void load(TokenPieces<kTokenTiles, kUnroll>& x, int64_t at) const {
    const char* base = static_cast<const char*>(p_.x);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t offset = at + u * kTurnBytes;
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
        const int token = 8 * n + group_;
        const bool inside = offset < row_bytes_ && token < p_.tokens;
        x.v[u][n] = inside
                        ? __ldg(reinterpret_cast<const uint4*>(base + token * row_bytes_ + offset))
                        : make_uint4(0, 0, 0, 0);
      }
    }
  }

  __device__ __forceinline__ static void multiply(float (&c)[kRowTiles][kTokenTiles][4],
                                                  const WeightPieces<kRowTiles, kUnroll>& w,
                                                  const TokenPieces<kTokenTiles, kUnroll>& x) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        const uint4 low = w.low[u][m];
        const uint4 high = w.high[u][m];
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n) {
          const uint4 v = x.v[u][n];
          mma<kFp8>(c[m][n], low.x, high.x, low.y, high.y, v.x, v.y);
          mma<kFp8>(c[m][n], low.z, high.z, low.w, high.w, v.z, v.w);
        }
      }
    }
  }

  // sums_[warp][token][row]
  __device__ __forceinline__ void keep(const float (&c)[kRowTiles][kTokenTiles][4]) const {
    float* mine = sums_ + warp_ * kTokens * kSumStride;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
        float* pair = mine + (8 * n + 2 * in_group_) * kSumStride + 16 * m + group_;
        pair[0] = c[m][n][0];
        pair[kSumStride] = c[m][n][1];
        pair[8] = c[m][n][2];
        pair[kSumStride + 8] = c[m][n][3];
      }
    }
  }

  __device__ __forceinline__ void write() const {
    for (int i = threadIdx.x; i < kRows * kTokens; i += kWarps * 32) {
      const int token = i / kRows;
      const int64_t row = first_row_ + i % kRows;
      if (token >= p_.tokens || row >= p_.out) continue;
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        sum += sums_[(w * kTokens + token) * kSumStride + i % kRows];
      }
      if (p_.w_scale != nullptr) sum *= p_.x_scale[token] * p_.w_scale[row];
      if (p_.bias != nullptr)
        sum += __bfloat162float(static_cast<const __nv_bfloat16*>(p_.bias)[row]);
      if (p_.softcap != 0.0f) sum = p_.softcap * tanhf(sum / p_.softcap);
      const int64_t at = token * p_.out + row;
      if (p_.y_is_f32) {
        static_cast<float*>(p_.y)[at] = sum;
      } else {
        static_cast<__nv_bfloat16*>(p_.y)[at] = __float2bfloat16_rn(sum);
      }
    }
  }

  const GemvParams& p_;
  float* const sums_;
  int warp_;
  int group_;     // 0..7: which rows, which token
  int in_group_;  // 0..3: which 16 of the 64 bytes
  int64_t row_bytes_;
  int64_t first_row_;
  const char* low_[kRowTiles];
  const char* high_[kRowTiles];
};

// kBlocks are to fit on a multiprocessor at once.
template <int kRowTiles, int kTokenTiles, int kUnroll, bool kIsAhead, int kBlocks, bool kFp8>
__global__ void __launch_bounds__(kWarps * 32, kBlocks)
    gemv_kernel(const __grid_constant__ GemvParams p) {
  using Kernel = Gemv<kRowTiles, kTokenTiles, kUnroll, kIsAhead, kFp8>;
  __shared__ float sums[kWarps * Kernel::kTokens * Kernel::kSumStride];
  Kernel(p, sums).run();
}

template <int kRowTiles, int kTokenTiles, int kUnroll, int kBlocks, bool kIsAhead = true>
cudaError_t launch(const GemvParams& p, cudaStream_t stream) {
  const int64_t rows = 16 * kRowTiles;
  const auto blocks = static_cast<unsigned>((p.out + rows - 1) / rows);
  return launch_pdl(p.is_fp8
                        ? gemv_kernel<kRowTiles, kTokenTiles, kUnroll, kIsAhead, kBlocks, true>
                        : gemv_kernel<kRowTiles, kTokenTiles, kUnroll, kIsAhead, kBlocks, false>,
                    dim3(blocks), dim3(kWarps * 32), 0, stream, p);
}

}  // namespace

cudaError_t launch_gemv(const GemvParams& params, cudaStream_t stream) {
  if (params.tokens <= 0 || params.out <= 0) return cudaSuccess;
  if (params.tokens > kGemvMaxTokens || !gemv_takes(params.in, params.is_fp8)) {
    return cudaErrorInvalidValue;
  }
  if (params.variant < 0 || params.variant >= gemv_variants(params.tokens)) {
    return cudaErrorInvalidValue;
  }
  if (params.tokens <= 8) {
    if (params.variant == 2) return launch<1, 1, 8, 1, false>(params, stream);
    return params.variant == 0 ? launch<1, 1, 2, 4>(params, stream)
                               : launch<1, 1, 4, 2>(params, stream);
  }
  if (params.tokens <= 16) {
    return params.variant == 0 ? launch<2, 2, 2, 2>(params, stream)
                               : launch<1, 2, 2, 3>(params, stream);
  }
  return launch<2, 4, 2, 1>(params, stream);
}

}  // namespace rudder::cuda
