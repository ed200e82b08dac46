// ProductScales: scales and bias that the kernel which reads a product of stored fp8 values still
// has to apply: element [t, o] is y[t, o] * row[t] * column[o] + bias[o]. This saves a pass over y
// (linear_epilogue.h) and one rounding of y.
#pragma once

namespace rudder::cuda {

struct ProductScales {
  const float* row = nullptr;     // [T]; null: y holds the numbers themselves
  const float* column = nullptr;  // [out] f32, 16-byte aligned like y's rows; set with `row`
  const void* bias = nullptr;     // [out] bf16, optional
};

}  // namespace rudder::cuda
