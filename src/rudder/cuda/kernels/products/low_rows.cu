#include "rudder/cuda/kernels/products/low_rows.h"

#include "rudder/cuda/kernels/device_vec.cuh"
#include "rudder/cuda/kernels/launch.h"

namespace rudder::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kInputs = 16;  // of a thread at a time
constexpr float kMost = 127.0f;

__device__ __forceinline__ uint32_t byte_of(float x, float over) {
  return static_cast<uint32_t>(__float2int_rn(x * over)) & 0xff;
}

__global__ void __launch_bounds__(kThreads)
    low_rows_kernel(const __grid_constant__ LowRowsParams p) {
  __shared__ float scratch[32];
  dependency_wait();
  dependency_trigger();
  const int64_t row = blockIdx.x;
  const auto* const from = static_cast<const Bf16*>(p.x) + row * p.width;
  const int pieces = static_cast<int>(p.width / kInputs);
  float highest = 0;
  for (int i = static_cast<int>(threadIdx.x); i < pieces; i += kThreads) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Floats x = unpack(load_run<true>(from + kInputs * i + kRun * half, kRun));
#pragma unroll
      for (int j = 0; j < kRun; ++j) highest = fmaxf(highest, fabsf(x.v[j]));
    }
  }
  highest = block_max(highest, scratch);
  const float scale = highest / kMost;
  const float over = highest > 0 ? kMost / highest : 0.0f;
  if (threadIdx.x == 0) p.scale[row] = scale;
  for (int i = static_cast<int>(threadIdx.x); i < pieces; i += kThreads) {
    const Floats low = unpack(load_run<true>(from + kInputs * i, kRun));
    const Floats high = unpack(load_run<true>(from + kInputs * i + kRun, kRun));
    uint32_t words[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      words[t] = byte_of(low.v[2 * t], over) | byte_of(low.v[2 * t + 1], over) << 8 |
                 byte_of(high.v[2 * t], over) << 16 | byte_of(high.v[2 * t + 1], over) << 24;
    }
    *reinterpret_cast<uint4*>(p.to + row * p.width + kInputs * i) =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
}

}  // namespace

cudaError_t launch_low_rows(const LowRowsParams& params, cudaStream_t stream) {
  if (params.rows <= 0) return cudaSuccess;
  return launch_pdl(low_rows_kernel, dim3(static_cast<unsigned>(params.rows)), dim3(kThreads), 0,
                    stream, params);
}

}  // namespace rudder::cuda
