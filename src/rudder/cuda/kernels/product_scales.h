// ProductScales: what a product of stored fp8 values is still to be multiplied by, where the kernel
// that reads it does that: element [t, o] is y[t, o] * row[t] * column[o] + bias[o]. Saves a pass
// over y (linear_epilogue.h), and y is rounded once less.
#pragma once

namespace rudder::cuda {

struct ProductScales {
  const float* row = nullptr;     // [T]; null: y holds the numbers themselves
  const float* column = nullptr;  // [out] f32, 16-byte aligned like y's rows; set with `row`
  const void* bias = nullptr;     // [out] bf16, optional
};

}  // namespace rudder::cuda
