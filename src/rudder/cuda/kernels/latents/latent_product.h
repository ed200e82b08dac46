// Products of each head's own part of the weight that keys and values are made of (kv_b_proj):
//   absorb: out_h = x_h . K_h     with K_h [inner, outer], whose rows are those of the weight
//   values: out_h = V_h . x_h     with V_h [outer, inner], likewise
// The weight lies by heads: rows of K_h, then rows of V_h. Sums are f32, in an order that depends
// on the shape alone. Reference: cpu/latents.cpp.
//
// Floor: the head's part of the weight once; up to some dozens of tokens that is all.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/cuda/kernels/latents/latent_rows.h"

namespace rudder::cuda {

struct LatentProductParams {
  bool absorbs = false;
  int32_t tokens = 0;
  int32_t num_heads = 0;
  int32_t inner = 0;  // elements of x_h
  int32_t outer = 0;  // of out_h
  // [num_heads * head_rows, absorbs ? outer : inner] bf16, or E4M3 with a scale a row.
  const void* weight = nullptr;
  const float* weight_scale = nullptr;  // null: bf16
  int32_t first_row = 0;                // of a head's part among its rows
  int32_t head_rows = 0;
  // bf16: x_h of a token is at x + token * x_token + h * x_head, in elements.
  const void* x = nullptr;
  int64_t x_token = 0;
  int64_t x_head = 0;
  void* out = nullptr;  // bf16, likewise
  int64_t out_token = 0;
  int64_t out_head = 0;
  const float* token_scale = nullptr;        // of out, [.]; null: 1
  const int32_t* token_scale_row = nullptr;  // [tokens] where a token's is
};
cudaError_t launch_latent_product(const LatentProductParams& params, cudaStream_t stream);
// The product that absorbs and the rows of the same tokens, in one launch where it takes the shape.
cudaError_t launch_latent_prep(const LatentProductParams& absorb, const LatentRowsParams& rows,
                               cudaStream_t stream);

}  // namespace rudder::cuda
