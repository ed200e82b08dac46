// Parts of ops that the CPU computes and this backend has no kernels for. CudaOps::prepare calls it
// when a model is loaded, so that a model which needs one is refused before its first step.
#pragma once

#include "rudder/base/result.h"
#include "rudder/ops/args.h"

namespace rudder::cuda {

// kUnsupported; `where` is the field of the model's spec that asks for the part.
Result<void> check_parts(const ops::StepBounds& bounds);

// kUnsupported: rows or vocabularies that are larger than the kernels take.
Result<void> check_sizes(const ops::StepBounds& bounds, bool multiplies_fp8);

}  // namespace rudder::cuda
