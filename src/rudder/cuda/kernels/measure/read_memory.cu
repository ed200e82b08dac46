#include "rudder/cuda/kernels/measure/read_memory.h"

#include "rudder/cuda/kernels/launch.h"

namespace rudder::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 8;
constexpr int kBlocksPerSm = 8;

__global__ void __launch_bounds__(kThreads)
    read_memory_kernel(const __grid_constant__ ReadMemoryParams p) {
  const auto* data = static_cast<const uint4*>(p.data);
  const int64_t count = p.bytes / 16;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  uint32_t sum = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride * kUnroll) {
    uint4 v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = i + u * stride;
      v[u] = at < count ? __ldcs(data + at) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) sum += v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
  }
  if (sum == 0x9e3779b9u) *p.sum = sum;  // almost never, which the compiler does not know
}

}  // namespace

cudaError_t launch_read_memory(const ReadMemoryParams& params, cudaStream_t stream) {
  if (params.bytes < 16) return cudaSuccess;
  return launch_pdl(read_memory_kernel, dim3(static_cast<unsigned>(params.num_sms * kBlocksPerSm)),
                    dim3(kThreads), 0, stream, params);
}

}  // namespace rudder::cuda
