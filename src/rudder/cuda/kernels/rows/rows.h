// Kernels that work on rows one at a time: embedding, norms, activations, gathers, conversions.
// Launched by the host class of this room; formulas: ops/args.h, src/rudder/cpu/reference_ops.cpp.
//
// Matrices are row-major and dense; T = rows. Widths are free: rows of a multiple of 8 elements at
// 16-byte aligned addresses go in 16-byte accesses, others one element at a time. A row's bits
// depend on nothing but the row. "fp8" is E4M3 with one f32 scale a row, scale = max |y| / 448,
// stored = y / scale to nearest even; a row of zeros has scale 0. No kernel needs a workspace; a
// launch with no rows does nothing. Of many rows the kernels of rows_ahead.h have some.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/cuda/kernels/products/product_scales.h"
#include "rudder/ops/activation.h"

namespace rudder::cuda {

// Of the kernels that keep a row in the registers of one block; half of it for rows that are not a
// multiple of 8 or not aligned.
inline constexpr int64_t kMaxNormWidth = 16384;
inline constexpr int64_t kMaxQuantisedWidth = 32768;

enum class Element : uint8_t { kF32, kF16, kBf16, kFp8 };

// out[t] = table[ids[t]] * scale. Moves T * hidden * (element + 2) bytes.
struct EmbedParams {
  const void* table = nullptr;       // [vocab, hidden], rows `stride` apart
  Element element = Element::kBf16;  // kF32 or kBf16
  int64_t stride = 0;                // in elements
  const int32_t* ids = nullptr;      // [T]
  float scale = 1.0f;
  int64_t rows = 0;
  int64_t hidden = 0;
  void* out = nullptr;  // [T, hidden] bf16
};
cudaError_t launch_embed(const EmbedParams& params, cudaStream_t stream);

// x = (x + delta_scale * delta_norm(delta)) * sum_scale; out = norm(x). Without `delta` nothing is
// added, without `norm` out = x, without `out` only x changes. The norm is of x as stored, rounded
// to bf16, so that it does not matter in which call a delta was added. Moves T * hidden * (2 x, 2
// delta, 2 x, 2 | 1 out, 2 out_act) bytes. hidden <= kMaxNormWidth. A norm with `alpha` is a
// UClipNorm, clip(alpha * x, -1, 1) * weight: it waits for no sum over the row. rounds: the branch
// after its norm and after its scale and taps, x between its points, and what becomes fp8 are
// rounded to bf16, as where a call is cut and stores them; without delta_scales.
struct ResidualNormParams {
  bool rounds = false;
  bool lets_next_begin = false;        // launch.h
  void* x = nullptr;                   // [T, hidden] bf16, in place
  const void* delta = nullptr;         // [T, hidden] bf16, optional; may be `out`
  ProductScales delta_scales;          // of delta; only with an out of fp8
  const float* delta_norm = nullptr;   // [hidden], optional
  const float* delta_alpha = nullptr;  // [hidden], optional
  float delta_eps = 1e-5f;
  const float* norm = nullptr;        // [hidden], optional
  const float* norm_alpha = nullptr;  // [hidden], optional
  float eps = 1e-5f;
  int64_t rows = 0;
  int64_t hidden = 0;
  void* out = nullptr;         // [T, hidden] bf16 or fp8, optional
  float* out_scale = nullptr;  // [T]: then `out` is fp8
  // Behind what models without scales read: a launch's parameters come from memory, line by line.
  float delta_scale = 1.0f;
  float sum_scale = 1.0f;
  void* out_act = nullptr;  // [T, hidden] bf16, optional, beside an `out` of fp8: the same rows
};
inline bool scales(const ResidualNormParams& params) {
  return params.delta_scale != 1.0f || params.sum_scale != 1.0f;
}
cudaError_t launch_residual_norm(const ResidualNormParams& params, cudaStream_t stream);

// out = act(gate) * up. Moves T * width * (4 + 2 | 1) bytes. fp8: width <= kMaxQuantisedWidth.
// rounds: what becomes fp8 is rounded to bf16 first; without x_scales. Kernels: gated_act.cu.
struct GatedActParams {
  bool rounds = false;
  bool lets_next_begin = false;  // launch.h
  const void* x = nullptr;       // [T, 2 * width] bf16: gate, up
  ProductScales x_scales;        // of x, if takes_scales(); `row` may be out_scale
  ops::Activation activation = ops::Activation::kSilu;
  int64_t rows = 0;
  int64_t width = 0;
  void* out = nullptr;         // [T, width] bf16 or fp8
  float* out_scale = nullptr;  // [T]: then `out` is fp8
};
inline bool takes_scales(const GatedActParams& params) {
  return params.out_scale != nullptr && params.x_scales.bias == nullptr &&
         params.activation != ops::Activation::kGelu;
}
cudaError_t launch_gated_act(const GatedActParams& params, cudaStream_t stream);

// Moves T * width * (2 + 1) bytes. width <= kMaxQuantisedWidth.
struct QuantiseParams {
  const void* x = nullptr;  // [T, width] bf16
  int64_t rows = 0;
  int64_t width = 0;
  void* out = nullptr;           // [T, width] fp8
  float* out_scale = nullptr;    // [T]
  bool lets_next_begin = false;  // launch.h
};
cudaError_t launch_quantise(const QuantiseParams& params, cudaStream_t stream);

// out[r] = x[from[r]]. Moves R * width * 4 bytes.
struct GatherRowsParams {
  const void* x = nullptr;        // [., width] bf16
  const int32_t* from = nullptr;  // [R] row numbers; below 0: a row of zeros
  int64_t rows = 0;               // R
  int64_t width = 0;
  void* out = nullptr;  // [R, width] bf16
};
cudaError_t launch_gather_rows(const GatherRowsParams& params, cudaStream_t stream);

// out[row(t), column .. column + width) = x[t], with row(t) of ops::PlaceRowsArgs. Moves T * width
// * 4 bytes.
struct PlaceRowsParams {
  const void* x = nullptr;        // [T, width] bf16
  const int32_t* rows = nullptr;  // [T], optional; below 0: row t is not placed
  int64_t count = 0;              // T
  int64_t width = 0;
  void* out = nullptr;  // [., out_width] bf16
  int64_t out_width = 0;
  int64_t column = 0;
  int32_t block_size = 0;  // above 0: `rows` are slots of a KV group of `group_layers` layers
  int32_t group_layers = 1;
};
cudaError_t launch_place_rows(const PlaceRowsParams& params, cudaStream_t stream);

// Logits of some tokens as logits of all: out[r, ids[j]] = x[r, j], every other one the lowest
// float. Two kernels. Moves R * (vocab + 2 * count) * 4 bytes.
struct SpreadLogitsParams {
  const float* x = nullptr;      // [R, count]
  const int32_t* ids = nullptr;  // [count], distinct
  int64_t rows = 0;              // R
  int64_t count = 0;
  float* out = nullptr;  // [R, vocab]
  int64_t vocab = 0;
};
cudaError_t launch_spread_logits(const SpreadLogitsParams& params, cudaStream_t stream);

// x = x + SiLU(y). Moves T * width * 6 bytes.
struct ResidualActParams {
  void* x = nullptr;        // [T, width] bf16, in place
  const void* y = nullptr;  // [T, width] bf16
  int64_t rows = 0;
  int64_t width = 0;
};
cudaError_t launch_residual_act(const ResidualActParams& params, cudaStream_t stream);

}  // namespace rudder::cuda
