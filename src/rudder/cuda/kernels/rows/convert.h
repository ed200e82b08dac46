// Kernels that convert weights on the device while a model is loaded, or fill them where there is
// no checkpoint. Launched by the host classes of this room. A launch without elements does nothing.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/cuda/kernels/rows/rows.h"

namespace rudder::cuda {

// to[i] = from[i]. From f32, f16 or bf16 to f32, f16, bf16 or fp8 (nearest even; beyond 448: 448).
struct CastParams {
  const void* from = nullptr;
  Element from_element = Element::kBf16;
  void* to = nullptr;
  Element to_element = Element::kBf16;
  int64_t count = 0;
};
cudaError_t launch_cast(const CastParams& params, cudaStream_t stream);

// A weight to fp8: to = from / scale, scale = max |from| / 448 over a row (a channel of the
// output), or, when `per_tensor`, over everything; then scale[0] alone is written and `scale` must
// hold 0 at first or the largest |weight| / 448 so far: it only grows, so the parts of a stacked
// weight share one scale when launch_tensor_scale is called on each before any is quantised.
struct QuantiseWeightParams {
  const void* from = nullptr;  // [rows, width] f32, f16 or bf16
  Element element = Element::kBf16;
  int64_t rows = 0;
  int64_t width = 0;
  bool per_tensor = false;
  void* to = nullptr;      // [rows, width] fp8
  float* scale = nullptr;  // [rows], or [1] when per_tensor
};
// Per channel: scales and values in one launch. Per tensor: values by the scale that is there.
cudaError_t launch_quantise_weight(const QuantiseWeightParams& params, cudaStream_t stream);
// scale[0] = max(scale[0], max |from| / 448); `to` is not used.
cudaError_t launch_tensor_scale(const QuantiseWeightParams& params, cudaStream_t stream);

// to[i] = mean + deviation * z, z normal by Box-Muller from Philox4x32-10 (base/philox.h) at (seed,
// first + i): the same values however the range is cut.
struct FillRandomParams {
  void* to = nullptr;
  Element element = Element::kBf16;
  int64_t count = 0;
  uint64_t seed = 0;
  int64_t first = 0;  // of this range in its tensor; a multiple of 8
  float mean = 0.0f;
  float deviation = 1.0f;
};
cudaError_t launch_fill_random(const FillRandomParams& params, cudaStream_t stream);

}  // namespace rudder::cuda
