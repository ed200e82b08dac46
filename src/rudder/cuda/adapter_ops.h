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
  using Run =
      std::function<void(const char* op, const ops::AdaptArgs& args, const Launcher& launcher)>;
  // `shrink` runs what does not touch the product, `expand` what adds to it.
  AdapterOps(Run shrink, Run expand) : shrink_(std::move(shrink)), expand_(std::move(expand)) {}

  void shrink_adapters(const ops::AdaptArgs& args) override;
  void expand_adapters(const ops::AdaptArgs& args) override;

 private:
  const Run shrink_;
  const Run expand_;
};

}  // namespace rudder::cuda
