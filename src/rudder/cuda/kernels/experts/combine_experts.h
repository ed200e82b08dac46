// out_t = sum over j of weights[t, j] * x_(t * k + j), in the order of j, then what an MLP that all
// tokens share made of t, times a sigmoid of its gate (ops::CombineExpertsArgs). In fp32, rounded
// once. Moves T * width * (k + 1) * 2 bytes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace rudder::cuda {

struct CombineExpertsParams {
  const void* x = nullptr;            // [tokens * k, width] bf16
  const float* weights = nullptr;     // [tokens, k]
  const void* shared = nullptr;       // [tokens, width] bf16, optional; may be `out`
  const void* shared_gate = nullptr;  // [tokens] bf16, optional
  int64_t tokens = 0;
  int64_t width = 0;
  int32_t k = 0;
  void* out = nullptr;  // [tokens, width] bf16
};
cudaError_t launch_combine_experts(const CombineExpertsParams& params, cudaStream_t stream);

}  // namespace rudder::cuda
