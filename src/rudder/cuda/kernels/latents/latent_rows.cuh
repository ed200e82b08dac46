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

// A block.
__device__ inline void make_latent_rows(const LatentRowsParams& p, int64_t token) {
  __shared__ float row[kMostLatentRow];
  __shared__ float scratch[32];
  __shared__ float largest[32];
  const auto thread = static_cast<int>(threadIdx.x);
  const int width = p.rank + p.rope_dim;
  const auto* const latent = static_cast<const Bf16*>(p.latent) + token * width;
  float squares = 0;
  for (int i = thread; i < width; i += kLatentRowThreads) {
    const float x = __bfloat162float(latent[i]);
    row[i] = x;
    if (i < p.rank) squares = fmaf(x, x, squares);
  }
  squares = block_sum(squares, scratch);  // and all of the row is there
  const float inverse = inverse_rms(squares, p.rank, p.eps);
  for (int i = thread; i < p.rank; i += kLatentRowThreads) row[i] = row[i] * inverse * p.norm[i];
  const int64_t rope_row = p.rope_row == nullptr ? 0 : p.rope_row[token];
  const float* const angles = p.rope == nullptr ? nullptr : p.rope + rope_row * 2 * p.half;
  if (angles != nullptr) {
    for (int i = thread; i < p.half; i += kLatentRowThreads) {
      const LatentPair pair = pair_of(p, i);
      float* const tail = row + p.rank;
      const LatentTurned turned = turn(p, angles, i, tail[pair.first], tail[pair.second]);
      tail[pair.first] = turned.first;
      tail[pair.second] = turned.second;
    }
  }
  __syncthreads();
  const int64_t slot = p.kv_slot[token];
  if (slot >= 0) keep_latent(p, slot, row, largest);

  // Queries. Of a part that does not turn the pairs are neighbours.
  const float scale = p.q_scale == nullptr ? 1.0f : p.q_scale[rope_row];
  const auto* const q =
      static_cast<const Bf16*>(p.q) + token * p.num_heads * (p.nope_dim + p.rope_dim) + p.nope_dim;
  auto* const out = static_cast<Bf16*>(p.q_out) + token * p.num_heads * width + p.rank;
  const int pairs = p.rope_dim / 2;
  for (int at = thread; at < p.num_heads * pairs; at += kLatentRowThreads) {
    const int head = at / pairs;
    const int i = at % pairs;
    const LatentPair pair = angles == nullptr ? LatentPair{2 * i, 2 * i + 1} : pair_of(p, i);
    const Bf16* const from = q + int64_t{head} * (p.nope_dim + p.rope_dim);
    Bf16* const to = out + int64_t{head} * width;
    LatentTurned x = {__bfloat162float(from[pair.first]), __bfloat162float(from[pair.second])};
    if (angles != nullptr) x = turn(p, angles, i, x.first, x.second);
    to[pair.first] = __float2bfloat16_rn(x.first * scale);
    to[pair.second] = __float2bfloat16_rn(x.second * scale);
  }
}

}  // namespace rudder::cuda
