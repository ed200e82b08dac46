#include "rudder/cuda/kernels/measure/pause.h"

#include "rudder/cuda/kernels/launch.h"

namespace rudder::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) pause_kernel(int64_t cycles, bool lets_next_begin) {
  if (lets_next_begin) dependency_trigger();
  dependency_wait();
  dependency_trigger();
  const int64_t begin = clock64();
  while (clock64() - begin < cycles) continue;
}

}  // namespace

cudaError_t launch_pause(int64_t cycles, bool lets_next_begin, int32_t num_sms,
                         cudaStream_t stream) {
  return launch_pdl(pause_kernel, dim3(static_cast<unsigned>(num_sms)), dim3(kThreads), 0, stream,
                    cycles, lets_next_begin);
}

}  // namespace rudder::cuda
