// A kernel that leaves memory idle for a while, as the small kernels between the products of a step
// do: for measurements of what stands behind it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace rudder::cuda {

// Blocks on all multiprocessors, for so many cycles. lets_next_begin: launch.h.
cudaError_t launch_pause(int64_t cycles, bool lets_next_begin, int32_t num_sms,
                         cudaStream_t stream);

}  // namespace rudder::cuda
