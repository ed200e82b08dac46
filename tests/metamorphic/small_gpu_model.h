// A tiny model that a GPU has kernels for, with weights and cache of one dtype, on a GPU whose bits
// do not depend on the batch. For tests of one device.
#pragma once

#include <gtest/gtest.h>

#include "metamorphic/harness.h"
#include "metamorphic/served_parts.h"
#include "rudder/cuda/cuda_ops.h"

namespace rudder::metamorphic {

inline exec::DeviceExecutor::Model small_gpu_model(tensor::DType dtype, testing::TinyArch arch) {
  cuda::CudaOpsSettings settings;
  settings.linear_dtype = dtype;
  settings.kv = {dtype};
  settings.batch_invariant = settings.tune = true;
  exec::DeviceExecutor::Model model;
  model.ops = value_of(cuda::make_cuda_ops(settings));
  model.spec = testing::tiny_spec(arch);
  use_served_parts(model.spec);
  model.weights = value_of(testing::random_weights(model.spec, *model.ops, kModelSeed));
  return model;
}

}  // namespace rudder::metamorphic
