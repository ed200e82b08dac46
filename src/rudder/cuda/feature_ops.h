// The ops that compute all features of a dictionary, from their arguments to their kernels. Called
// by CudaOps.
#pragma once

#include <cuda_runtime_api.h>

#include "rudder/ops/args.h"
#include "rudder/ops/feature_args.h"

namespace rudder::cuda {

cudaError_t run_encode(const ops::EncodeArgs& args, int num_sms, cudaStream_t stream);
cudaError_t run_read_features(const ops::ReadFeaturesArgs& args, int num_sms, cudaStream_t stream);

}  // namespace rudder::cuda
