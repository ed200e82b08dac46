// Kernels that run after a product of unscaled fp8 values, and the gather of rows from an fp8
// table. Launched by linear.cpp and cuda_ops.cpp. The bits of a row depend only on the row.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace rudder::cuda {

// y[t, o] = cap((y[t, o] * x_scale[t] * w_scale[o] + bias[o]) * factor), in place; every part is
// optional. Any size; columns in multiples of 8 at 16-byte aligned rows go in 16-byte accesses.
// Moves rows * cols * (4 bf16 | 8 f32) bytes. cap(v) = softcap * tanh(v / softcap). Reference:
// testing/reference_ops.h, reference_linear and reference_soft_cap.
struct ScaleRowsColsParams {
  void* y = nullptr;  // [rows, cols] bf16, or f32
  bool y_is_f32 = false;
  const float* x_scale = nullptr;  // [rows], with w_scale or not at all
  const float* w_scale = nullptr;  // [cols]
  const void* bias = nullptr;      // [cols] bf16
  int64_t rows = 0;
  int64_t cols = 0;
  float factor = 1.0f;
  float softcap = 0.0f;  // 0 = off
};
cudaError_t launch_scale_rows_cols(const ScaleRowsColsParams& params, cudaStream_t stream);

// out[t] = table[ids[t]] * w_scale[ids[t]] * scale. Moves rows * hidden * 3 bytes.
struct EmbedFp8Params {
  const void* table = nullptr;     // [vocab, hidden] e4m3
  const float* w_scale = nullptr;  // [vocab]
  const int32_t* ids = nullptr;    // [rows]
  float scale = 1.0f;
  int64_t rows = 0;
  int64_t hidden = 0;
  void* out = nullptr;  // [rows, hidden] bf16
};
cudaError_t launch_embed_fp8(const EmbedFp8Params& params, cudaStream_t stream);

}  // namespace rudder::cuda
