// Converts the arguments of sample, score and what guesses, and the state of slots, into the
// structs of kernels: pointers instead of views. Called by CudaOps.
#pragma once

#include "rudder/cuda/kernels/sampling/sample.h"
#include "rudder/ops/sample_args.h"
#include "rudder/ops/score_args.h"
#include "rudder/ops/slot_args.h"

namespace rudder::cuda {

SlotStateParams slot_state(const ops::SlotState& state);
PlacementParams placement_params(const ops::BeginStepArgs::Placement& placement,
                                 const ops::SlotState& state);
SampleParams sample_params(const ops::SampleArgs& args);
ScoreParams score_params(const ops::ScoreArgs& args);

}  // namespace rudder::cuda
