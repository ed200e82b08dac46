// Reads memory at the highest rate of the device; bench ops compares other kernels with it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace rudder::cuda {

// Reads `bytes` (a multiple of 16, 16-byte aligned) once; `sum` [1] is written only so that the
// reads are not left out. Grid: 8 blocks a multiprocessor, each thread in strides of the grid.
struct ReadMemoryParams {
  const void* data = nullptr;
  int64_t bytes = 0;
  int32_t num_sms = 132;
  uint32_t* sum = nullptr;
};
cudaError_t launch_read_memory(const ReadMemoryParams& params, cudaStream_t stream);

}  // namespace rudder::cuda
