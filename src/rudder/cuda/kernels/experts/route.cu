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
  begin_list(p, shared);
  const bool has_pair = token < p.tokens && lane < p.k;
  const int64_t pair = token * p.k + lane;
  int32_t expert = 0;
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
  list_pairs(p, shared, has_pair, pair, expert);
}

}  // namespace

cudaError_t launch_route(const RouteParams& p, cudaStream_t stream) {
  if (p.tokens == 0) return cudaSuccess;
  if (!is_routable(p)) return cudaErrorInvalidValue;
  const int threads = p.tokens < kManyTokens ? kFewThreads : kManyThreads;
  const int tokens = threads / 32;
  const auto blocks = static_cast<unsigned>((p.tokens + tokens - 1) / tokens);
  const size_t bytes = p.logits == nullptr ? 0 : sizeof(float) * 2 * tokens * p.experts;
  const auto kernel = p.experts <= 128   ? route_kernel<4>
                      : p.experts <= 256 ? route_kernel<8>
                                         : route_kernel<kMostExperts / 32>;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  return launch_pdl(kernel, dim3(blocks), dim3(static_cast<unsigned>(threads)), bytes, stream, p);
}

}  // namespace rudder::cuda
