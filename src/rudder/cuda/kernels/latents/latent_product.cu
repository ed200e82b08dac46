// A block has a head, some columns of its outputs and 16, 32 or 64 tokens; mma.m16n8k16 of bf16,
// whose rows are tokens. Tiles of 64 of the inner dimension come through a ring of shared memory;
// a tile of the weight is kWeightRows of its rows by 64 of its elements in either product, and E4M3
// becomes bf16 there. Shapes that are no whole tiles take a thread for each output.
#include "rudder/cuda/kernels/latents/latent_product.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "rudder/cuda/kernels/async_copy.cuh"
#include "rudder/cuda/kernels/attention/attention_device.cuh"
#include "rudder/cuda/kernels/latents/latent_rows.cuh"
#include "rudder/cuda/kernels/launch.h"

namespace rudder::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kTile = 64;               // of the inner dimension, and of a weight's row
constexpr int kPitch = kTile * 2 + 16;  // bytes: eight rows' chunks in all banks

template <bool kAbsorbs, bool kFp8, int kTokens>
struct ProductShared {
  static constexpr int kWeightRows = kAbsorbs ? 64 : 32;
  // Few tokens wait for their weights alone: all of them are on their way at once.
  static constexpr int kStages = kTokens == 64 ? 4 : 8;
  static constexpr int kStoredPitch = kFp8 ? kTile : kPitch;
  alignas(16) uint8_t x[kStages][kTokens * kPitch];
  alignas(16) uint8_t stored[kStages][kWeightRows * kStoredPitch];
  alignas(16) uint8_t wide[kFp8 ? kWeightRows * kPitch : 16];  // of E4M3, as bf16
};

__device__ inline float float_of_code(uint8_t code) {
  __nv_fp8_e4m3 value;
  value.__x = code;
  return static_cast<float>(value);
}

// Two f16, times a scale, as bf16.
__device__ inline uint32_t scaled(uint32_t two, float scale) {
  __half2 half;
  memcpy(&half, &two, sizeof(half));
  const float2 numbers = __half22float2(half);
  return pack_bf16(numbers.x * scale, numbers.y * scale);
}

template <bool kAbsorbs, bool kFp8, int kTokens>
class ProductBlock {
 public:
  using Shared = ProductShared<kAbsorbs, kFp8, kTokens>;
  static constexpr int kStages = Shared::kStages;
  static constexpr int kWeightRows = Shared::kWeightRows;
  static constexpr int kOuter = kAbsorbs ? kTile : kWeightRows;  // columns of the block
  static constexpr int kColumns = kOuter / kWarps;               // of a warp
  static constexpr int kTokenParts = kTokens / 16;

  __device__ ProductBlock(const LatentProductParams& params, Shared& shared)
      : p_(params),
        shared_(shared),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32),
        first_(static_cast<int>(blockIdx.x) * kOuter),
        head_(static_cast<int>(blockIdx.y)),
        token_(static_cast<int>(blockIdx.z) * kTokens) {}

  // Sends for the first tiles of the weight, which no kernel writes.
  __device__ void start() {
#pragma unroll
    for (int step = 0; step < kStages - 1; ++step) {
      if (step < steps()) send_weight(step);
    }
  }

  // Behind start().
  __device__ void run() {
#pragma unroll
    for (int step = 0; step < kStages - 1; ++step) {
      if (step < steps()) send_x(step);
      commit_copies();  // the first with all that start() has sent for
    }
#pragma unroll 1
    for (int step = 0; step < steps(); ++step) {
      wait_copies<kStages - 2>();
      __syncthreads();  // the tile is there, and all have read the one before
      if (step + kStages - 1 < steps()) {
        send_x(step + kStages - 1);
        send_weight(step + kStages - 1);
      }
      commit_copies();
      uint32_t weight = shared_address(shared_.stored[step % kStages]);
      if constexpr (kFp8) {
        widen(step);
        __syncthreads();
        weight = shared_address(shared_.wide);
      }
      multiply(shared_address(shared_.x[step % kStages]), weight);
    }
    write();
  }

 private:
  __device__ int steps() const {
    return p_.inner / kTile;
  }

  // Row of the weight's tile of a step.
  __device__ int64_t weight_row(int step, int row) const {
    return int64_t{head_} * p_.head_rows + p_.first_row + (kAbsorbs ? step * kTile : first_) + row;
  }

  __device__ void send_x(int step) {
    const uint32_t x = shared_address(shared_.x[step % kStages]);
    for (auto at = static_cast<int>(threadIdx.x); at < kTokens * 8; at += kThreads) {
      const int row = at / 8;
      const bool is_there = token_ + row < p_.tokens;
      const int64_t token = is_there ? token_ + row : 0;
      const auto* const from = static_cast<const __nv_bfloat16*>(p_.x) + token * p_.x_token +
                               head_ * p_.x_head + step * kTile + at % 8 * 8;
      copy_async(x + row * kPitch + at % 8 * 16, from, is_there ? 16 : 0);
    }
  }

  __device__ void send_weight(int step) {
    constexpr int kBytes = kFp8 ? 1 : 2;
    constexpr int kChunks = kTile * kBytes / 16;  // of a row
    const int64_t width = kAbsorbs ? p_.outer : p_.inner;
    const uint32_t to = shared_address(shared_.stored[step % kStages]);
    const int column = kAbsorbs ? first_ : step * kTile;
    for (auto at = static_cast<int>(threadIdx.x); at < kWeightRows * kChunks; at += kThreads) {
      const int row = at / kChunks;
      const int64_t from = (weight_row(step, row) * width + column) * kBytes + at % kChunks * 16;
      copy_async(to + row * Shared::kStoredPitch + at % kChunks * 16,
                 static_cast<const uint8_t*>(p_.weight) + from, 16);
    }
  }

  // Codes as bf16; where their rows are summed up, times these rows' scales.
  __device__ void widen(int step) {
    constexpr int kEach = 8;  // codes that a thread has at a time
    for (auto at = static_cast<int>(threadIdx.x); at < kWeightRows * kTile / kEach;
         at += kThreads) {
      const int row = at / (kTile / kEach);
      const int column = at % (kTile / kEach) * kEach;
      const auto codes =
          *reinterpret_cast<const uint2*>(&shared_.stored[step % kStages][row * kTile + column]);
      const float scale = kAbsorbs ? p_.weight_scale[weight_row(step, row)] : 1.0f;
      const uint2 low = widen_four(codes.x);
      const uint2 high = widen_four(codes.y);
      *reinterpret_cast<uint4*>(&shared_.wide[row * kPitch + column * 2]) = make_uint4(
          scaled(low.x, scale), scaled(low.y, scale), scaled(high.x, scale), scaled(high.y, scale));
    }
  }

  __device__ void multiply(uint32_t x, uint32_t weight) {
    // The matrix that a lane names a row of, and that row.
    const int matrix = lane_ / 8;
    const int row = lane_ % 8;
    const uint32_t x_from = x + (matrix % 2 * 8 + row) * kPitch + matrix / 2 * 16;
#pragma unroll
    for (int pair = 0; pair < kTile / 32; ++pair) {
      uint32_t b[2][kColumns / 8][2];  // of two steps of 16
      if constexpr (kAbsorbs) {
        static_assert(kColumns == 16);
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          uint32_t all[4];
          load_matrices_transposed(all, weight +
                                            (pair * 32 + k * 16 + matrix % 2 * 8 + row) * kPitch +
                                            (warp_ * kColumns + matrix / 2 * 8) * 2);
#pragma unroll
          for (int i = 0; i < 4; ++i) b[k][i / 2][i % 2] = all[i];
        }
      } else {
        static_assert(kColumns == 8);
        uint32_t all[4];
        load_matrices(all, weight + (warp_ * kColumns + row) * kPitch + pair * 64 + matrix * 16);
#pragma unroll
        for (int i = 0; i < 4; ++i) b[i / 2][0][i % 2] = all[i];
      }
#pragma unroll
      for (int k = 0; k < 2; ++k) {
#pragma unroll
        for (int m = 0; m < kTokenParts; ++m) {
          uint32_t a[4];
          load_matrices(a, x_from + m * 16 * kPitch + pair * 64 + k * 32);
#pragma unroll
          for (int n = 0; n < kColumns / 8; ++n) mma<false>(sums_[m][n], a, b[k][n][0], b[k][n][1]);
        }
      }
    }
  }

  __device__ void write() const {
    const int64_t rows = int64_t{head_} * p_.head_rows + p_.first_row;
#pragma unroll
    for (int m = 0; m < kTokenParts; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = token_ + m * 16 + half * 8 + lane_ / 4;
        if (token >= p_.tokens) continue;
        const float scale =
            p_.token_scale == nullptr ? 1.0f : p_.token_scale[p_.token_scale_row[token]];
        auto* const out =
            static_cast<__nv_bfloat16*>(p_.out) + token * p_.out_token + head_ * p_.out_head;
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n) {
          const int column = first_ + warp_ * kColumns + n * 8 + lane_ % 4 * 2;
          float x = sums_[m][n][2 * half] * scale;
          float y = sums_[m][n][2 * half + 1] * scale;
          if constexpr (kFp8 && !kAbsorbs) {
            x *= p_.weight_scale[rows + column];
            y *= p_.weight_scale[rows + column + 1];
          }
          *reinterpret_cast<uint32_t*>(out + column) = pack_bf16(x, y);
        }
      }
    }
  }

  const LatentProductParams& p_;
  Shared& shared_;
  const int warp_;
  const int lane_;
  const int first_;  // output
  const int head_;
  const int token_;  // the first
  float sums_[kTokenParts][kColumns / 8][4] = {};
};

template <bool kAbsorbs, bool kFp8, int kTokens>
__global__ void __launch_bounds__(kThreads)
    latent_product_kernel(const __grid_constant__ LatentProductParams p,
                          const __grid_constant__ LatentRowsParams rows) {
  extern __shared__ __align__(16) uint8_t raw[];
  auto& shared = *reinterpret_cast<ProductShared<kAbsorbs, kFp8, kTokens>*>(raw);
  const int behind = static_cast<int>(blockIdx.y) - p.num_heads;
  if (behind < 0) {
    ProductBlock<kAbsorbs, kFp8, kTokens> block(p, shared);
    block.start();
    dependency_wait();
    dependency_trigger();
    block.run();
    return;
  }
  dependency_wait();
  dependency_trigger();
  if constexpr (kAbsorbs) {  // a block has the row of a token, or a head's queries of all of them
    const int part = behind * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
    const int first = static_cast<int>(blockIdx.z) * kTokens;
    const int count = min(kTokens, rows.tokens - first);
    if (part < kTokens) {
      if (part < count) keep_latent_row(rows, first + part);
    } else if (part < kTokens + p.num_heads) {
      turn_latent_queries(rows, first, count, part - kTokens, 1);
    }
  }
}

// A thread for each output.
__global__ void __launch_bounds__(kThreads)
    any_latent_product_kernel(const __grid_constant__ LatentProductParams p) {
  dependency_wait();
  dependency_trigger();
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= int64_t{p.tokens} * p.num_heads * p.outer) return;
  const int64_t column = at % p.outer;
  const int64_t head = at / p.outer % p.num_heads;
  const int64_t token = at / p.outer / p.num_heads;
  const auto* const x =
      static_cast<const __nv_bfloat16*>(p.x) + token * p.x_token + head * p.x_head;
  float sum = 0;
  for (int i = 0; i < p.inner; ++i) {
    const int64_t row = head * p.head_rows + p.first_row + (p.absorbs ? i : column);
    const int64_t element =
        row * (p.absorbs ? p.outer : p.inner) + (p.absorbs ? column : int64_t{i});
    const float weight =
        p.weight_scale != nullptr
            ? float_of_code(static_cast<const uint8_t*>(p.weight)[element]) * p.weight_scale[row]
            : __bfloat162float(static_cast<const __nv_bfloat16*>(p.weight)[element]);
    sum = fmaf(__bfloat162float(x[i]), weight, sum);
  }
  if (p.token_scale != nullptr) sum *= p.token_scale[p.token_scale_row[token]];
  static_cast<__nv_bfloat16*>(p.out)[token * p.out_token + head * p.out_head + column] =
      __float2bfloat16_rn(sum);
}

template <bool kAbsorbs, bool kFp8, int kTokens>
cudaError_t launch_tiles(const LatentProductParams& params, const LatentRowsParams& rows,
                         cudaStream_t stream) {
  static_assert(kThreads == kLatentRowThreads);
  using Block = ProductBlock<kAbsorbs, kFp8, kTokens>;
  constexpr size_t kShared = sizeof(typename Block::Shared);
  const auto kernel = latent_product_kernel<kAbsorbs, kFp8, kTokens>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  if (error != cudaSuccess) return error;
  const int columns = params.outer / Block::kOuter;
  const int behind = rows.tokens > 0 ? (kTokens + params.num_heads + columns - 1) / columns : 0;
  const dim3 grid(static_cast<unsigned>(columns), static_cast<unsigned>(params.num_heads + behind),
                  static_cast<unsigned>((params.tokens + kTokens - 1) / kTokens));
  return launch_pdl(kernel, grid, dim3(kThreads), kShared, stream, params, rows);
}

template <bool kAbsorbs, bool kFp8>
cudaError_t launch_tokens(const LatentProductParams& params, const LatentRowsParams& rows,
                          cudaStream_t stream) {
  if (params.tokens <= 16) return launch_tiles<kAbsorbs, kFp8, 16>(params, rows, stream);
  if (params.tokens <= 32) return launch_tiles<kAbsorbs, kFp8, 32>(params, rows, stream);
  return launch_tiles<kAbsorbs, kFp8, 64>(params, rows, stream);
}

bool is_whole_tiles(const LatentProductParams& p) {
  return p.inner % kTile == 0 && p.outer % kTile == 0 && p.x_token % 8 == 0 && p.x_head % 8 == 0 &&
         p.out_token % 2 == 0 && p.out_head % 2 == 0;
}

cudaError_t launch_any(const LatentProductParams& params, cudaStream_t stream) {
  const int64_t outputs = int64_t{params.tokens} * params.num_heads * params.outer;
  return launch_pdl(any_latent_product_kernel,
                    dim3(static_cast<unsigned>((outputs + kThreads - 1) / kThreads)),
                    dim3(kThreads), 0, stream, params);
}

}  // namespace

cudaError_t launch_latent_product(const LatentProductParams& params, cudaStream_t stream) {
  if (params.tokens <= 0) return cudaSuccess;
  if (!is_whole_tiles(params)) return launch_any(params, stream);
  const bool is_fp8 = params.weight_scale != nullptr;
  if (params.absorbs) {
    return is_fp8 ? launch_tokens<true, true>(params, {}, stream)
                  : launch_tokens<true, false>(params, {}, stream);
  }
  return is_fp8 ? launch_tokens<false, true>(params, {}, stream)
                : launch_tokens<false, false>(params, {}, stream);
}

cudaError_t launch_latent_prep(const LatentProductParams& absorb, const LatentRowsParams& rows,
                               cudaStream_t stream) {
  if (absorb.tokens <= 0) return cudaSuccess;
  if (!absorb.absorbs || absorb.tokens != rows.tokens || !takes_latent_rows(rows)) {
    return cudaErrorInvalidValue;
  }
  if (is_whole_tiles(absorb)) {
    return absorb.weight_scale != nullptr ? launch_tokens<true, true>(absorb, rows, stream)
                                          : launch_tokens<true, false>(absorb, rows, stream);
  }
  const cudaError_t error = launch_latent_rows(rows, stream);
  return error != cudaSuccess ? error : launch_any(absorb, stream);
}

}  // namespace rudder::cuda
