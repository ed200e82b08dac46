#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/measure/mark.h"

namespace rudder::cuda {
namespace {

__global__ void mark_kernel(uint64_t* word, uint64_t value) {
  dependency_wait();
  *static_cast<volatile uint64_t*>(word) = value;
  __threadfence_system();
}

}  // namespace

cudaError_t launch_mark(uint64_t* word, uint64_t value, cudaStream_t stream) {
  return launch_pdl(mark_kernel, dim3(1), dim3(1), 0, stream, word, value);
}

}  // namespace rudder::cuda
