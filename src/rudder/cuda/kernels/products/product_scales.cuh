// Device code of ProductScales (product_scales.h). Included by .cu files only.
#pragma once

#include "rudder/cuda/kernels/device_vec.cuh"
#include "rudder/cuda/kernels/products/product_scales.h"

namespace rudder::cuda {

// The scales and biases of a run of 8 columns of a row.
struct RunScales {
  bool pending = false;
  float row = 1.0f;
  Floats column = {};
  Packed bias = {};

  __device__ Floats applied_to(Floats x) const {
    if (!pending) return x;
    const Floats add = unpack(bias);
#pragma unroll
    for (int j = 0; j < kRun; ++j) x.v[j] = fmaf(x.v[j], row * column.v[j], add.v[j]);
    return x;
  }
};

// kAligned as of load_run(), of the columns.
template <bool kAligned>
__device__ inline RunScales load_scales(const ProductScales& scales, int64_t row, int column,
                                        int left) {
  RunScales out;
  out.pending = scales.row != nullptr;
  if (!out.pending) return out;
  out.row = scales.row[row];
  out.column = load_floats<kAligned>(scales.column + column, left);
  if (scales.bias != nullptr) {
    out.bias = load_run<kAligned>(static_cast<const Bf16*>(scales.bias) + column, left);
  }
  return out;
}

// One element.
__device__ inline float scaled(const ProductScales& scales, int64_t row, int64_t column, float x) {
  if (scales.row == nullptr) return x;
  const auto* bias = static_cast<const Bf16*>(scales.bias);
  return fmaf(x, scales.row[row] * scales.column[column],
              bias != nullptr ? __bfloat162float(bias[column]) : 0.0f);
}

}  // namespace rudder::cuda
