// What becomes of gate and up of an expert, in f32. Included by .cu files only.
#pragma once

#include "rudder/cuda/kernels/rows/gated_act.cuh"
#include "rudder/ops/activation.h"

namespace rudder::cuda {

__device__ __forceinline__ float gated(float gate, float up, ops::Activation activation) {
  switch (activation) {
    case ops::Activation::kSilu:
      return activate<ops::Activation::kSilu>(gate) * up;
    case ops::Activation::kGeluTanh:
      return activate<ops::Activation::kGeluTanh>(gate) * up;
    case ops::Activation::kGelu:
      return activate<ops::Activation::kGelu>(gate) * up;
    case ops::Activation::kClampedSwiglu:
      return clamped_swiglu(gate, up);
    case ops::Activation::kLimitedSilu:
      return limited_silu(gate, up);
    default:
      return activate<ops::Activation::kRelu>(gate) * up;
  }
}

}  // namespace rudder::cuda
