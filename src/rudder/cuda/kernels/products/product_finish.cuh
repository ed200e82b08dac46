// What becomes of an element's sum before it is written. Products that promise the same bits finish
// their sums with this, whose operations no compiler fuses. Included by .cu files only.
#pragma once

#include <cuda_bf16.h>

namespace rudder::cuda {

// To add this changes no number, zeros included.
constexpr float kNoBias = -0.0f;

__device__ __forceinline__ float bias_of(const void* bias, int64_t row) {
  if (bias == nullptr) return kNoBias;
  return __bfloat162float(static_cast<const __nv_bfloat16*>(bias)[row]);
}
__device__ __forceinline__ float finished(float sum, float scale, float bias) {
  return __fadd_rn(__fmul_rn(sum, scale), bias);
}

}  // namespace rudder::cuda
