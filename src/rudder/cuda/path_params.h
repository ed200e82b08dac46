// Converts the arguments of keep_paths into the structs of its kernel, one for each launch. Called
// by CudaOps.
#pragma once

#include <vector>

#include "rudder/cuda/kernels/sampling/keep_paths.h"
#include "rudder/ops/args.h"

namespace rudder::cuda {

std::vector<KeepPathsParams> keep_paths_params(const ops::KeepPathsArgs& args);

}  // namespace rudder::cuda
