// What latent_prep makes of rows beside its product (ops/latent_args.h): the row that the cache
// keeps of a token, and the part of each query that turns. A block has a token. Reference:
// cpu/latents.cpp.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/cuda/kernels/kv_type.h"

namespace rudder::cuda {

inline constexpr int32_t kMostLatentRow = 576;

struct LatentRowsParams {
  const void* q = nullptr;       // [tokens, num_heads * (nope_dim + rope_dim)] bf16
  const void* latent = nullptr;  // [tokens, rank + rope_dim] bf16
  int32_t tokens = 0;
  int32_t num_heads = 0;
  int32_t nope_dim = 0;
  int32_t rope_dim = 0;
  int32_t rank = 0;             // rank + rope_dim <= kMostLatentRow
  const float* norm = nullptr;  // [rank]
  float eps = 0;
  const float* rope = nullptr;  // [., 2, half]; null: nothing turns
  int32_t half = 0;
  const int32_t* rope_row = nullptr;  // [tokens]
  bool neighbours = false;
  const float* q_scale = nullptr;    // [.] by rope_row; null: 1
  const int32_t* kv_slot = nullptr;  // [tokens]; -1: is not written
  void* kv = nullptr;                // [., block_size, rank + rope_dim]
  KvType kv_type = KvType::kBf16;
  KvScales scales;
  int32_t block_size = 16;
  void* q_out =
      nullptr;  // [tokens, num_heads * (rank + rope_dim)] bf16, behind `rank` of each head
};
constexpr bool takes_latent_rows(const LatentRowsParams& p) {
  return p.rank + p.rope_dim <= kMostLatentRow && p.rope_dim % 2 == 0;
}
// cudaErrorInvalidValue for rows that it does not take.
cudaError_t launch_latent_rows(const LatentRowsParams& params, cudaStream_t stream);

}  // namespace rudder::cuda
