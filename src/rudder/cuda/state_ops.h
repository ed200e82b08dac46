// StateOps: mixers that keep a state, and gates of rows, from their arguments to their kernels
// (kernels/states/). CudaOps owns the one object, and runs its launches as it does its own.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <utility>

#include "rudder/ops/facets.h"

namespace rudder::cuda {

class StateOps final : public ops::StateOps {
 public:
  using Launcher = std::function<cudaError_t(cudaStream_t)>;
  using Run = std::function<void(const char* op, std::initializer_list<const ops::View*> views,
                                 const Launcher& launcher)>;
  StateOps(Run run, int32_t num_sms) : run_(std::move(run)), num_sms_(num_sms) {}

  ops::StateLimits state_limits() const override;
  void convolve(const ops::ConvolveArgs& args) override;
  void recur(const ops::RecurArgs& args) override;
  void gate_rows(const ops::GateRowsArgs& args) override;

 private:
  const Run run_;
  const int32_t num_sms_;
};

}  // namespace rudder::cuda
