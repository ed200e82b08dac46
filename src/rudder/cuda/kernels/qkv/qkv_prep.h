// From one product's q, k and v to attention's inputs: norm, rotation, the write to the paged
// cache. Launched by the host class of this room; formulas: ops/args.h, plain_qkv_prep in
// src/rudder/cpu/plain_attention.cpp.
//
// The cache of a layer, which the attention kernels share: [num_blocks, 2 (k, v), num_kv_heads,
// block_size, head_dim], dense. Of codes the stored value times a scale is the number: that of the
// head, or that of the head's row of the token, which is written here (ops::KvLayer).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/cuda/kernels/kv_type.h"
#include "rudder/cuda/kernels/products/product_scales.h"
#include "rudder/cuda/kernels/qkv/qkv_layout.h"

namespace rudder::cuda {

// Any head_dim; a multiple of 8 with 16-byte aligned rows goes in 16-byte accesses. Moves
// T * (H + 2 KV) * D * 2 bytes in, T * H * D * 2 out, T * 2 KV * D * (2 | 1) to the cache.
// A block works on one token; all in fp32 from the load to one rounding at the store. For many
// tokens there is a kernel of its own (qkv_prep_ahead.h); a token's bits are the same. Norms behind
// the rotation and scales of queries are in the general kernel alone: a block a head of a token.
struct QkvPrepParams {
  const void* qkv = nullptr;  // [T, (num_heads + 2 * num_kv_heads) * head_dim] bf16
  ProductScales qkv_scales;   // of qkv
  int64_t rows = 0;           // T
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  const float* q_norm = nullptr;  // [head_dim], or [num_heads * head_dim] when norm_is_wide
  // Of a UClipNorm, clip(alpha * x, -1, 1) * q_norm; as long as q_norm; null: the norm is RMS.
  const float* q_alpha = nullptr;
  float q_eps = 1e-5f;
  const float* k_norm = nullptr;  // likewise with num_kv_heads
  const float* k_alpha = nullptr;
  float k_eps = 1e-5f;
  struct Norm {
    const float* weight = nullptr;  // [head_dim]
    const float* alpha = nullptr;
    float eps = 1e-5f;
  } v_norm;
  bool q_norm_is_wide = false;  // over all heads as one vector
  bool k_norm_is_wide = false;
  const float* rope = nullptr;        // [rope_rows, 2, rot / 2]: cos, sin; null: no rotation
  int32_t half_rot = 0;               // rot / 2 <= head_dim / 2: element i turns with i + half_rot
  const int32_t* rope_row = nullptr;  // [T]
  bool norms_rotated = false;         // heads are normed behind their rotation; none is wide
  const float* q_scale = nullptr;     // [rope_rows]: the row's queries times it, last; null: 1
  const int32_t* kv_slot = nullptr;   // [T] block * block_size + offset; -1: k and v go nowhere
  void* kv_cache = nullptr;
  KvType kv_type = KvType::kBf16;
  KvScales scales;  // those of tokens are written
  int32_t block_size = 16;
  void* q_out = nullptr;  // [T, num_heads * head_dim] bf16
  // Of ranks whose wide norms are over the heads of all: [T, num_ranks, 2] sums of squares of q and
  // of k on each rank; null: this rank's are all.
  const float* rank_squares = nullptr;
  int32_t num_ranks = 1;
};
cudaError_t launch_qkv_prep(const QkvPrepParams& params, cudaStream_t stream);

// This rank's sums of squares of q and of k, [T, 2]: those that a wide RMS norm needs.
cudaError_t launch_qkv_squares(const QkvPrepParams& params, float* squares, cudaStream_t stream);

}  // namespace rudder::cuda
