#include "rudder/cuda/stream_marks.h"

#include "rudder/cuda/device_status.h"
#include "rudder/cuda/kernels/measure/mark.h"

namespace rudder::cuda {

Result<std::unique_ptr<StreamMarks>> StreamMarks::make() {
  void* word = nullptr;
  RUDDER_CUDA_TRY(
      cudaHostAlloc(&word, sizeof(uint64_t), cudaHostAllocPortable | cudaHostAllocMapped), "stages",
      "");
  *static_cast<uint64_t*>(word) = 0;
  return std::make_unique<StreamMarks>(static_cast<uint64_t*>(word));
}

cudaError_t StreamMarks::mark(cudaStream_t stream) {
  return launch_mark(word_, ++num_marks_, stream);
}

}  // namespace rudder::cuda
