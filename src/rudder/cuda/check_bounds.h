// Dtypes and sizes for which this backend has no kernels. CudaOps asks when it is made and when a
// model is loaded, so that a model which needs one is refused before its first step.
#pragma once

#include <initializer_list>

#include "rudder/base/result.h"
#include "rudder/ops/args.h"

namespace rudder::cuda {

// Of weights and caches. kUnsupported; `where` is "dtype".
Result<void> check_stored(std::initializer_list<tensor::DType> dtypes, const ops::KvFormat& kv);

// kUnsupported: rows or vocabularies that are larger than the kernels take.
Result<void> check_sizes(const ops::StepBounds& bounds, bool multiplies_fp8);

}  // namespace rudder::cuda
