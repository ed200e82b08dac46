// What a block of 128 threads does with a token's rows (latent_rows.h). Included by .cu files only.
#pragma once

#include "rudder/cuda/kernels/latents/latent_rows.h"
#include "rudder/cuda/kernels/qkv/qkv_prep.cuh"

namespace rudder::cuda {

inline constexpr int kLatentRowThreads = 128;

// The two elements of pair i of a part that turns.
struct LatentPair {
  int first;
  int second;
};
__device__ inline LatentPair pair_of(const LatentRowsParams& p, int i) {
  return p.neighbours ? LatentPair{2 * i, 2 * i + 1} : LatentPair{i, i + p.half};
}

struct LatentTurned {
  float first;
  float second;
};
__device__ inline LatentTurned turn(const LatentRowsParams& p, const float* angles, int i, float a,
                                    float b) {
  const float cosine = angles[i];
  const float sine = angles[p.half + i];
  return {__fmaf_rn(a, cosine, -__fmul_rn(b, sine)), __fmaf_rn(a, sine, __fmul_rn(b, cosine))};
}

// Of all threads' values, which are not negative; NaN where one is.
__device__ inline float largest_of_block(float v, float* scratch) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    v = largest_or_nan(v, __shfl_xor_sync(0xffffffffu, v, step));
  }
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
  __syncthreads();
  for (int warp = 0; warp < kLatentRowThreads / 32; ++warp) v = largest_or_nan(v, scratch[warp]);
  return v;
}

// The token's row, in shared memory, goes to its slot. All threads.
__device__ inline void keep_latent(const LatentRowsParams& p, int64_t slot, const float* row,
                                   float* scratch) {
  const int width = p.rank + p.rope_dim;
  const int64_t at = slot * width;
  if (p.kv_type == KvType::kBf16) {
    auto* const to = static_cast<Bf16*>(p.kv) + at;
    for (auto i = static_cast<int>(threadIdx.x); i < width; i += kLatentRowThreads) {
      to[i] = __float2bfloat16_rn(row[i]);
    }
    return;
  }
  float by = 1;
  float scale = p.scales.k == nullptr ? 1.0f : p.scales.k[0];
  if (scales_tokens(p.kv_type)) {
    float largest = 0;
    for (auto i = static_cast<int>(threadIdx.x); i < width; i += kLatentRowThreads) {
      largest = largest_or_nan(largest, fabsf(row[i]));
    }
    const RowCodes codes = row_codes(largest_of_block(largest, scratch), p.kv_type);
    if (threadIdx.x == 0) {
      p.scales.tokens[slot / p.block_size * p.scales.token_pitch + slot % p.block_size] =
          codes.scale;
    }
    by = codes.inverse;
    scale = 1;
  }
  for (auto i = static_cast<int>(threadIdx.x); i < width; i += kLatentRowThreads) {
    const float x = scale == 1.0f ? row[i] * by : scaled_for_fp8(row[i], scale);
    static_cast<uint8_t*>(p.kv)[at + i] =
        p.kv_type == KvType::kInt8Tokens
            ? static_cast<uint8_t>(int8_of(x))
            : static_cast<uint8_t>(__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3));
  }
}

// The row that is kept of a token. A block; what it reads is on its way at once.
__device__ inline void keep_latent_row(const LatentRowsParams& p, int64_t token) {
  constexpr int kEach = (kMostLatentRow + kLatentRowThreads - 1) / kLatentRowThreads;
  __shared__ float row[kMostLatentRow];
  __shared__ float scratch[32];
  __shared__ float largest[32];
  const auto thread = static_cast<int>(threadIdx.x);
  const int width = p.rank + p.rope_dim;
  const auto* const latent = static_cast<const Bf16*>(p.latent) + token * width;
  const int64_t slot = p.kv_slot[token];
  const int64_t rope_row = p.rope_row == nullptr ? 0 : p.rope_row[token];
  float x[kEach];
  float by[kEach];
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int i = thread + j * kLatentRowThreads;
    x[j] = i < width ? __bfloat162float(latent[i]) : 0.0f;
    by[j] = i < p.rank ? p.norm[i] : 0.0f;
  }
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    if (thread + j * kLatentRowThreads < p.rank) squares = fmaf(x[j], x[j], squares);
  }
  squares = block_sum(squares, scratch);
  const float inverse = inverse_rms(squares, p.rank, p.eps);
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int i = thread + j * kLatentRowThreads;
    if (i < width) row[i] = i < p.rank ? x[j] * inverse * by[j] : x[j];
  }
  __syncthreads();
  if (p.rope != nullptr) {
    const float* const angles = p.rope + rope_row * 2 * p.half;
    for (int i = thread; i < p.half; i += kLatentRowThreads) {
      const LatentPair pair = pair_of(p, i);
      float* const tail = row + p.rank;
      const LatentTurned turned = turn(p, angles, i, tail[pair.first], tail[pair.second]);
      tail[pair.first] = turned.first;
      tail[pair.second] = turned.second;
    }
  }
  __syncthreads();
  if (slot >= 0) keep_latent(p, slot, row, largest);
}

// The part of a head's query that turns, of pair i. Of a part that does not turn the pairs are
// neighbours. A thread.
__device__ inline void turn_latent_query(const LatentRowsParams& p, int64_t token, int64_t head,
                                         int i) {
  const int64_t rope_row = p.rope_row == nullptr ? 0 : p.rope_row[token];
  const float scale = p.q_scale == nullptr ? 1.0f : p.q_scale[rope_row];
  const int64_t at = token * p.num_heads + head;
  const auto* const from =
      static_cast<const Bf16*>(p.q) + at * (p.nope_dim + p.rope_dim) + p.nope_dim;
  auto* const to = static_cast<Bf16*>(p.q_out) + at * (p.rank + p.rope_dim) + p.rank;
  const LatentPair pair = p.rope == nullptr ? LatentPair{2 * i, 2 * i + 1} : pair_of(p, i);
  LatentTurned x = {__bfloat162float(from[pair.first]), __bfloat162float(from[pair.second])};
  if (p.rope != nullptr) x = turn(p, p.rope + rope_row * 2 * p.half, i, x.first, x.second);
  to[pair.first] = __float2bfloat16_rn(x.first * scale);
  to[pair.second] = __float2bfloat16_rn(x.second * scale);
}

// Of all heads of a token, or of some tokens of a head. A block.
__device__ inline void turn_latent_queries(const LatentRowsParams& p, int64_t token, int32_t tokens,
                                           int64_t head, int32_t heads) {
  const int pairs = p.rope_dim / 2;
  for (auto at = static_cast<int>(threadIdx.x); at < tokens * heads * pairs;
       at += kLatentRowThreads) {
    const int query = at / pairs;
    turn_latent_query(p, token + query / heads, head + query % heads, at % pairs);
  }
}

}  // namespace rudder::cuda
