// A kernel that tells the host how far a stream has come: it writes a number to memory of the host.
// Launched by the host class of this room; it takes the time of a launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace rudder::cuda {

// *word = value, in pinned memory, behind all that is enqueued on the stream.
cudaError_t launch_mark(uint64_t* word, uint64_t value, cudaStream_t stream);

}  // namespace rudder::cuda
