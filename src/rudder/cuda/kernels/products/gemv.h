// Products of few tokens: y[T, out] = x[T, in] · W[out, in]^T for T <= 32, as a stream over W. What
// bounds it is reading W once (out * in elements); x and y are small beside it.
//
// Grid: a block of 8 warps for every 16 or 32 rows of W. The warps of a block
// share the rows and take turns along `in`, 64 bytes of each row at a time: each lane loads 16
// bytes of a row, tensor cores multiply them (m16n8k16 bf16, m16n8k32 fp8; W is the A operand,
// tokens are its columns), and the warps' sums are added in the order of the warps. So a row's sum
// is taken in the same order whatever T is: an element of y depends on its own row of x alone, bit
// for bit.
//
// The tensor core's k index is only a name: lane t of a group holds bytes [16 t, 16 t + 16) of the
// 64, of a row of W and of a token alike, and each half of them is one k step.
//
// Reference: testing/reference_ops.h, reference_linear.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace rudder::cuda {

constexpr int64_t kGemvMaxTokens = 32;

struct GemvParams {
  const void* weight = nullptr;  // [out, in] bf16 or e4m3; 16-byte aligned
  const void* x = nullptr;       // [tokens, in] of the same type; 16-byte aligned
  // Of e4m3 operands: what a row of x, of W is multiplied by. Null: 1.
  const float* x_scale = nullptr;  // [tokens]
  const float* w_scale = nullptr;  // [out]
  const void* bias = nullptr;      // [out] bf16; optional
  void* y = nullptr;               // [tokens, out] bf16 or f32
  int64_t out = 0;
  int64_t in = 0;
  int32_t tokens = 0;
  float softcap = 0.0f;  // 0 = off; else y = softcap * tanh(y / softcap)
  bool is_fp8 = false;   // of weight and x
  bool y_is_f32 = false;
  int32_t variant = 0;  // 0 .. gemv_variants(tokens) - 1
};

// Ways to cut the work up, of which one or another is faster: many small blocks, or fewer with more
// bytes under way each; of few tokens also with 4096 bytes of each row, which for weights of few
// rows are all there are. The bits of the result are the same.
constexpr int32_t gemv_variants(int64_t tokens) {
  if (tokens <= 8) return 3;
  return tokens <= 16 ? 2 : 1;
}

// True when launch_gemv takes weights of this width: whole 16-byte pieces a row.
constexpr bool gemv_takes(int64_t in, bool is_fp8) {
  return in % (is_fp8 ? 16 : 8) == 0;
}

cudaError_t launch_gemv(const GemvParams& params, cudaStream_t stream);

}  // namespace rudder::cuda
