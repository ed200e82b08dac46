// DraftOps: the ops of what guesses, from their arguments to their kernels. CudaOps owns the one
// object, and runs its launches as it does its own: in order, on its stream, with its checks.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <initializer_list>
#include <utility>

#include "rudder/ops/facets.h"

namespace rudder::cuda {

class DraftOps final : public ops::DraftOps {
 public:
  using Launcher = std::function<cudaError_t(cudaStream_t)>;
  using Run = std::function<void(const char* op, std::initializer_list<const ops::View*> views,
                                 const Launcher& launcher)>;
  explicit DraftOps(Run run) : run_(std::move(run)) {}

  void place_rows(const ops::PlaceRowsArgs& args) override;
  void spread_logits(const ops::SpreadLogitsArgs& args) override;
  void residual_act(const ops::ResidualActArgs& args) override;
  void look_up(const ops::LookUpArgs& args) override;
  void place_tails(const ops::PlaceTailsArgs& args) override;
  void keep_guess(const ops::KeepGuessArgs& args) override;

 private:
  const Run run_;
};

}  // namespace rudder::cuda
