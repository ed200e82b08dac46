// Converts the arguments of read_features into the struct of its kernels. Called by CudaOps.
#pragma once

#include "rudder/cuda/kernels/read_features.h"
#include "rudder/ops/feature_args.h"

namespace rudder::cuda {

ReadFeaturesParams read_features_params(const ops::ReadFeaturesArgs& args, int num_blocks);

}  // namespace rudder::cuda
