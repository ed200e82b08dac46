// StateOps: mixers that keep a state, and gates of rows, from their arguments to their kernels
// (kernels/states/). CudaOps owns the one object, and runs its launches as it does its own.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <utility>

#include "rudder/base/result.h"
#include "rudder/cuda/device_memory.h"
#include "rudder/cuda/latent_ops.h"
#include "rudder/ops/facets.h"

namespace rudder::cuda {

class StateOps final : public ops::StateOps {
 public:
  using Launcher = std::function<cudaError_t(cudaStream_t)>;
  using Run = std::function<void(const char* op, std::initializer_list<const ops::View*> views,
                                 const Launcher& launcher)>;
  // by_chunks: long runs of tokens go by chunks (kernels/states/chunks.h), whose sums have another
  // order than those of one token after the other.
  struct Settings {
    int32_t num_sms = 132;
    bool by_chunks = true;
  };
  // `memory` outlives it.
  StateOps(DeviceMemory& memory, Run run, const Settings& settings)
      : memory_(memory), run_(std::move(run)), settings_(settings), latent_ops_(run_) {}

  // Room for the chunks of every step, where long runs go by them.
  Result<void> prepare(const ops::StepBounds& bounds);

  ops::StateLimits state_limits() const override;
  ops::LatentOps* latent_ops() override { return &latent_ops_; }
  void convolve(const ops::ConvolveArgs& args) override;
  void recur(const ops::RecurArgs& args) override;
  void gate_rows(const ops::GateRowsArgs& args) override;

 private:
  DeviceMemory& memory_;
  const Run run_;
  const Settings settings_;
  tensor::View chunks_;  // u8; empty: nothing goes by chunks
  LatentOps latent_ops_;
};

}  // namespace rudder::cuda
