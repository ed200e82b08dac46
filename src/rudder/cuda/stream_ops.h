// StreamOps: residuals of several rows, from their arguments to their kernels (kernels/streams/).
// CudaOps owns the one object, and runs its launches as it does its own.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <initializer_list>
#include <utility>

#include "rudder/ops/facets.h"

namespace rudder::cuda {

class StreamOps final : public ops::StreamOps {
 public:
  using Launcher = std::function<cudaError_t(cudaStream_t)>;
  using Run = std::function<void(const char* op, std::initializer_list<const ops::View*> views,
                                 const Launcher& launcher)>;
  // `rounds`: what ops keep between their parts is rounded to bf16 (ResidualNormParams); it may
  // change, and outlives the object.
  StreamOps(Run run, const bool& rounds) : run_(std::move(run)), rounds_(rounds) {}

  void mix_streams(const ops::MixStreamsArgs& args) override;
  void sum_blocks(const ops::SumBlocksArgs& args) override;
  void connect_streams(const ops::ConnectStreamsArgs& args) override;
  bool connect_and_norm(const ops::ConnectStreamsArgs& args,
                        const ops::ResidualNormArgs& norm) override;
  void gate_streams(const ops::GateStreamsArgs& args) override;
  void scale_add(const ops::ScaleAddArgs& args) override;

 private:
  const Run run_;
  const bool& rounds_;
};

}  // namespace rudder::cuda
