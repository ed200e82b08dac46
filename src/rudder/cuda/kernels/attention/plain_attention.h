// Attention over the paged cache for every head size and block size: what the tuned kernels
// (attention.h) do not serve. One block for each (token, query head); its warps share the keys, a
// lane holds every 32nd element of the head. Reads the keys and values of a KV head once for each
// query head and token, so it is slow; sums and softmax are fp32. A row's bits depend on its own
// sequence alone. Reference: cpu/plain_attention.cpp.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/cuda/kernels/attention/attention.h"

namespace rudder::cuda {

constexpr int32_t kPlainAttentionMaxHeadDim = 576;

struct PlainSoftmax {
  float softcap = 0.0f;          // 0 = off
  const float* sinks = nullptr;  // as of AttentionParams
};

struct PlainCache {
  const void* data = nullptr;  // [., parts, num_kv_heads, block_size, head_dim]
  int32_t parts = 2;           // keys and values; 1: a row is both
  KvType type = KvType::kBf16;
  KvScales scales;  // value = stored * scale
};

struct PlainAttentionParams {
  const void* q = nullptr;  // [T, num_heads * head_dim] bf16
  PlainCache kv;
  const int32_t* q_begin = nullptr;      // [num_seqs + 1]
  const int32_t* kv_len = nullptr;       // [num_seqs]; 0 = padding: zeros
  const int32_t* table_row = nullptr;    // [num_seqs]
  const int32_t* block_table = nullptr;  // [., max_blocks]
  int64_t max_blocks = 0;
  const uint64_t* ancestors = nullptr;  // [T] ops::AttentionBatch.ancestors; null: no trees
  int32_t num_seqs = 0;
  int32_t num_tokens = 0;  // T; tokens past q_begin[num_seqs] are zeros
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_size = 0;
  int32_t window = 0;  // 0 = all
  float scale = 1.0f;
  PlainSoftmax softmax;
  GateParams gate;      // with it there is no softmax
  void* out = nullptr;  // [T, num_heads * head_dim] bf16
};

cudaError_t launch_plain_attention(const PlainAttentionParams& params, cudaStream_t stream);

}  // namespace rudder::cuda
