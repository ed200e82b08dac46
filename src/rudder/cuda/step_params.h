// Converts the arguments of begin_step and advance_step into the structs of their kernels: pointers
// instead of views. Called by CudaOps.
#pragma once

#include "rudder/cuda/kernels/sampling/step.h"
#include "rudder/ops/slot_args.h"

namespace rudder::cuda {

BeginStepParams begin_step_params(const ops::BeginStepArgs& args);
AdvanceStepParams advance_step_params(const ops::AdvanceStepArgs& args);

}  // namespace rudder::cuda
