// The ops of residuals of several rows, from their arguments to their kernels (kernels/streams/).
// CudaOps owns the one object, and runs its launches as it does its own.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <initializer_list>
#include <memory>

#include "rudder/ops/facets.h"

namespace rudder::cuda {

using StreamLauncher = std::function<cudaError_t(cudaStream_t)>;
using StreamRun = std::function<void(const char* op, std::initializer_list<const ops::View*> views,
                                     const StreamLauncher& launcher)>;

// `rounds`: what ops keep between their parts is rounded to bf16 (ResidualNormParams); it may
// change, and outlives the object.
std::unique_ptr<ops::StreamOps> make_stream_ops(StreamRun run, const bool& rounds);

}  // namespace rudder::cuda
