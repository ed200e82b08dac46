#include "rudder/cuda/kernels/experts/combine_experts.h"

#include "rudder/cuda/kernels/device_vec.cuh"
#include "rudder/cuda/kernels/launch.h"

namespace rudder::cuda {
namespace {

template <bool kAligned>
__global__ void __launch_bounds__(kFlatThreads) combine_kernel(const CombineExpertsParams p) {
  dependency_wait();
  dependency_trigger();
  const int64_t row = blockIdx.x;
  const int i = flat_column();
  const int left = static_cast<int>(p.width) - i;
  if (left <= 0) return;
  const auto* const x = static_cast<const Bf16*>(p.x) + row * p.k * p.width + i;
  Floats sum = {};
#pragma unroll 4
  for (int j = 0; j < p.k; ++j) {
    const Floats one = unpack(load_run<kAligned>(x + j * p.width, left));
    const float weight = p.weights[row * p.k + j];
#pragma unroll
    for (int c = 0; c < kRun; ++c) sum.v[c] = fmaf(weight, one.v[c], sum.v[c]);
  }
  if (p.shared != nullptr) {
    const auto* const from = static_cast<const Bf16*>(p.shared) + row * p.width + i;
    const Floats shared = unpack(load_run<kAligned>(from, left));
    const float share =
        p.shared_gate == nullptr
            ? 1.0f
            : 1.0f / (1.0f + expf(-__bfloat162float(static_cast<const Bf16*>(p.shared_gate)[row])));
#pragma unroll
    for (int c = 0; c < kRun; ++c) sum.v[c] = fmaf(share, shared.v[c], sum.v[c]);
  }
  store_run<kAligned>(static_cast<Bf16*>(p.out) + row * p.width + i, left, pack(sum));
}

}  // namespace

cudaError_t launch_combine_experts(const CombineExpertsParams& p, cudaStream_t stream) {
  if (p.tokens == 0 || p.width == 0) return cudaSuccess;
  const bool aligned =
      p.width % kRun == 0 && is_aligned(p.x) && is_aligned(p.shared) && is_aligned(p.out);
  const auto kernel = aligned ? combine_kernel<true> : combine_kernel<false>;
  return launch_pdl(kernel, flat_grid(p.tokens, p.width), dim3(kFlatThreads), 0, stream, p);
}

}  // namespace rudder::cuda
