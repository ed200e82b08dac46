// FeatureOps: the ops that compute features of a dictionary, from their arguments to their kernels.
// CudaOps owns the one object, and runs its launches as it does its own.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <initializer_list>
#include <utility>

#include "rudder/ops/facets.h"

namespace rudder::cuda {

class FeatureOps final : public ops::FeatureOps {
 public:
  using Launcher = std::function<cudaError_t(cudaStream_t)>;
  using Run = std::function<void(const char* op, std::initializer_list<const ops::View*> views,
                                 const Launcher& launcher)>;
  FeatureOps(Run run, int num_sms) : run_(std::move(run)), num_sms_(num_sms) {}

  void encode(const ops::EncodeArgs& args) override;
  void read_features(const ops::ReadFeaturesArgs& args) override;

 private:
  const Run run_;
  const int num_sms_;
};

}  // namespace rudder::cuda
