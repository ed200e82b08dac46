// LatentOps: the ops of attention over short rows, from their arguments to their kernels
// (kernels/latents/). StateOps owns the one object, and runs its launches as its own.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <initializer_list>
#include <utility>

#include "rudder/ops/facets.h"

namespace rudder::cuda {

class LatentOps final : public ops::LatentOps {
 public:
  using Launcher = std::function<cudaError_t(cudaStream_t)>;
  using Run = std::function<void(const char* op, std::initializer_list<const ops::View*> views,
                                 const Launcher& launcher)>;
  explicit LatentOps(Run run) : run_(std::move(run)) {}

  void latent_prep(const ops::LatentPrepArgs& args) override;
  void latent_values(const ops::LatentValuesArgs& args) override;

 private:
  const Run run_;
};

}  // namespace rudder::cuda
