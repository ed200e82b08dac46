// Attention over rows that are key and value at once, which all heads of a token read
// (ops/latent_args.h): one KV head of kRank + kRope elements, of which the first kRank are values.
// A block reads tiles of 32 keys once from memory for up to 64 rows of queries and multiplies them
// by mma.m16n8k16 of bf16; kernels/latents/latent_plan.h says who does what. A plan is made once a
// step and serves all layers. Reference: cpu/plain_attention.cpp.
//
// Floor of a decode: 2 * (rank + rope) bytes for each key of a sequence, and 4 * rank + 2 * rope
// flop for each head and key. Rows of a prompt do the same flop for each key that they see.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "rudder/cuda/kernels/latents/latent_plan.h"

namespace rudder::cuda {

struct LatentAttentionConfig {
  int32_t num_heads = 0;
  int32_t row = 0;   // elements that are kept of a token
  int32_t rank = 0;  // its first ones, which are values
  // No sequence's keys are divided: a row's bits depend neither on the other sequences of the step
  // nor on how its own tokens are cut into steps.
  bool whole_sequences = false;
  int32_t num_sms = 132;  // multiprocessors of the device
};

// The rows that kernels are built for.
constexpr bool has_latent_attention(int32_t row, int32_t rank) {
  return (rank == 512 && (row == 576 || row == 512)) || (row == 320 && rank == 256);
}

struct LatentAttentionBounds {
  int32_t num_seqs = 0;
  int32_t num_tokens = 0;  // T
  int32_t max_q_len = 0;   // of sequences that are no trees
};

// Device memory, 256-byte aligned, of latent_workspace_bytes() bytes; need not be initialised.
size_t latent_workspace_bytes(const LatentAttentionConfig& config, int32_t max_seqs);

struct LatentAttentionParams {
  LatentAttentionConfig config;
  LatentAttentionBounds bounds;
  const int32_t* q_begin = nullptr;      // [num_seqs + 1] prefix sums of q_len
  const int32_t* kv_len = nullptr;       // [num_seqs]; 0 = padding
  const int32_t* table_row = nullptr;    // [num_seqs]
  const int32_t* block_table = nullptr;  // [., max_blocks]
  int64_t max_blocks = 0;
  const uint64_t* ancestors = nullptr;  // [T] ops::AttentionBatch.ancestors; null: no trees
  const void* kv = nullptr;             // [., block_size, row] bf16, 16-byte aligned
  int32_t block_size = 16;
  float scale = 1.0f;
  const float* sinks = nullptr;  // [num_heads]: scores of keys whose values are 0; null: none
  const void* q = nullptr;       // [T, num_heads, row] bf16, 4-byte aligned
  void* out = nullptr;           // likewise; elements of a head from `rank` on are not written
  void* workspace = nullptr;
  // The kernel in front of this one is none that writes the plan, the block table or rows of tokens
  // that are not the step's: they may be read before it has ended.
  bool reads_ahead = false;
};

// Once a step, of its batch alone: the parameters of layers are not read.
cudaError_t launch_latent_plan(const LatentAttentionParams& params, cudaStream_t stream);
// Behind it. cudaErrorInvalidValue where no kernel is built for the rows.
cudaError_t launch_latent_attention(const LatentAttentionParams& params, cudaStream_t stream);

// --- of the kernels ---

// Adds up the parts of what launch_latent_attention has cut.
cudaError_t launch_latent_merge(const LatentAttentionParams& params, cudaStream_t stream);

inline constexpr int32_t kLatentMaxRows = 64;  // of a tile of rows

// Chunks that keep sums in memory, as many as there is room for.
__host__ __device__ constexpr int32_t latent_parts(int32_t row_tile, int32_t num_sms) {
  return 2 * num_sms * (kLatentMaxRows / row_tile);
}
__host__ __device__ constexpr size_t latent_plan_bytes(int32_t num_seqs) {
  const size_t bytes = sizeof(LatentPlan) + (static_cast<size_t>(num_seqs) + 1) * sizeof(LatentSeq);
  return (bytes + 255) / 256 * 256;
}

// The sums of a chunk: of each row of a tile its largest score and its sum relative to that, in
// powers of two; then [row_tile, rank] sums of values.
struct LatentPart {
  float2* max_sum;
  float* values;
};
__host__ __device__ inline LatentPart latent_part(const LatentAttentionParams& params,
                                                  int32_t row_tile, int32_t index) {
  auto* const parts =
      static_cast<char*>(params.workspace) + latent_plan_bytes(params.bounds.num_seqs);
  const size_t each = (sizeof(float2) + sizeof(float) * static_cast<size_t>(params.config.rank)) *
                      static_cast<size_t>(row_tile);
  auto* const at = parts + each * static_cast<size_t>(index);
  return {reinterpret_cast<float2*>(at),
          reinterpret_cast<float*>(at + sizeof(float2) * static_cast<size_t>(row_tile))};
}

#ifdef __CUDACC__
// By which sums of values of a row are multiplied, once it has its largest score and its sum
// relative to that, in powers of two. `row`: of the sequence's part of the step.
__device__ inline float latent_share(const LatentAttentionParams& params, int32_t row,
                                     float2 max_sum) {
  if (max_sum.y == 0.0f) return 0.0f;
  if (params.sinks == nullptr) return 1.0f / max_sum.y;
  constexpr float kLog2OfE = 1.44269504f;
  const float sink = params.sinks[row % params.config.num_heads] * kLog2OfE;
  return 1.0f / (max_sum.y + exp2f(sink - max_sum.x));
}
#endif

inline bool latent_by_token(const LatentAttentionParams& params) {
  return params.ancestors != nullptr;
}
// Of a step.
inline int32_t latent_row_tile_of(const LatentAttentionParams& params) {
  const int64_t tokens = latent_by_token(params) ? 1 : params.bounds.max_q_len;
  return latent_row_tile(tokens * params.config.num_heads);
}

}  // namespace rudder::cuda
