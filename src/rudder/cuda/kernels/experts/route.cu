#include "rudder/cuda/kernels/experts/route.h"

#include <algorithm>

#include "rudder/cuda/kernels/experts/route.cuh"
#include "rudder/cuda/kernels/launch.h"

namespace rudder::cuda {
namespace {

constexpr int kFewThreads = 256;
constexpr int kManyThreads = 1024;
constexpr int64_t kManyTokens = 256;  // from which blocks have many threads: one makes the list

template <int kEach>
__global__ void __launch_bounds__(kManyThreads) route_kernel(const RouteParams p) {
  extern __shared__ float of_warps[];
  __shared__ ListShared shared;
  dependency_wait();
  dependency_trigger();
  const auto warp = static_cast<int>(threadIdx.x / 32);
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const int64_t token = int64_t{blockIdx.x} * (blockDim.x / 32) + warp;
  const bool is_alone = gridDim.x == 1;  // then all that it counts stays in shared memory
  if (is_alone) {
    for (auto e = static_cast<int>(threadIdx.x); e < p.experts; e += static_cast<int>(blockDim.x)) {
      shared.counts[e] = 0;
    }
    __syncthreads();
  }
  const bool has_pair = token < p.tokens && lane < p.k;
  const int64_t pair = token * p.k + lane;
  int32_t expert = 0;
  int32_t offset = 0;
  if (token < p.tokens) {
    float* const shares = of_warps + 2 * warp * p.experts;
    if (p.logits != nullptr) {
      const auto* const logits = static_cast<const Bf16*>(p.logits) + token * p.experts;
      expert = Router<kEach>(p, shares, shares + p.experts).run(token, [&](int e) {
        return __bfloat162float(logits[e]);
      });
    } else if (has_pair) {
      expert = p.chosen[pair];
    }
  }
  if (has_pair) offset = atomicAdd((is_alone ? shared.counts : p.list.counts) + expert, 1);
  if (is_alone) {
    make_runs(p, shared);
    if (has_pair) p.list.pairs[shared.begins[expert] + offset] = static_cast<int32_t>(pair);
    return;
  }
  if (has_pair) p.list.offsets[pair] = offset;
  // What this block wrote is seen by whoever sees that it is done.
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t* const done = p.list.counts + p.experts;
    shared.is_last = atomicAdd(done, 1) == static_cast<int>(gridDim.x) - 1;
    if (shared.is_last) *done = 0;
  }
  __syncthreads();
  if (!shared.is_last) return;
  __threadfence();
  make_list(p, shared);
}

}  // namespace

cudaError_t launch_route(const RouteParams& p, cudaStream_t stream) {
  if (p.tokens == 0) return cudaSuccess;
  if (!is_routable(p)) return cudaErrorInvalidValue;
  const int threads = p.tokens < kManyTokens ? kFewThreads : kManyThreads;
  const int tokens = threads / 32;
  const auto blocks = static_cast<unsigned>((p.tokens + tokens - 1) / tokens);
  const size_t bytes = p.logits == nullptr ? 0 : sizeof(float) * 2 * tokens * p.experts;
  const auto kernel = p.experts <= 128 ? route_kernel<4> : route_kernel<kMostExperts / 32>;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  return launch_pdl(kernel, dim3(blocks), dim3(static_cast<unsigned>(threads)), bytes, stream, p);
}

}  // namespace rudder::cuda
