// AdapterOps: what adapters add to products, from its arguments to its kernels. CudaOps owns the
// one object, and runs its launches as it does its own.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <utility>

#include "rudder/cuda/kernels/products/product_scales.h"
#include "rudder/ops/facets.h"

namespace rudder::cuda {

class AdapterOps final : public ops::AdapterOps {
 public:
  // A product may still lack its scales, as what reads it next applies them. Then what is added is
  // divided by them, so that rows without an adapter keep their bits.
  using Launcher = std::function<cudaError_t(cudaStream_t, const ProductScales&)>;
  using Run = std::function<void(const ops::AddAdaptersArgs& args, const Launcher& launcher)>;
  explicit AdapterOps(Run run) : run_(std::move(run)) {}

  int64_t mid_floats(int64_t num_tokens, int64_t mid_width) const override;
  void add_adapters(const ops::AddAdaptersArgs& args) override;

 private:
  const Run run_;
};

}  // namespace rudder::cuda
