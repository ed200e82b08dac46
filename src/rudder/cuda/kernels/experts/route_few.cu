#include "rudder/cuda/kernels/experts/route_few.h"

#include "rudder/cuda/kernels/device_barrier.cuh"
#include "rudder/cuda/kernels/experts/route.cuh"
#include "rudder/cuda/kernels/launch.h"

namespace rudder::cuda {
namespace {

constexpr int kBlocks = 8;
constexpr int kWarps = 8;  // of a block
constexpr int kThreads = 32 * kWarps;
constexpr int kLineBytes = 128;
static_assert(kWarps >= kFewRouted);  // a warp has a token

__device__ __forceinline__ float dot(const Packed& a, const Packed& b, float sum) {
  const Floats x = unpack(a);
  const Floats y = unpack(b);
#pragma unroll
  for (int j = 0; j < kRun; ++j) sum = fmaf(x.v[j], y.v[j], sum);
  return sum;
}

// The logits of one expert, by a warp; lane t has that of token t.
__device__ float logits_of(const RouteFewParams& p, int expert) {
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const auto pieces = static_cast<int>(p.in / kRun);
  const auto tokens = static_cast<int>(p.route.tokens);
  const auto* const w = static_cast<const Packed*>(p.weight) + int64_t{expert} * pieces;
  const auto* const x = static_cast<const Packed*>(p.x);
  float sums[kFewRouted] = {};
#pragma unroll 4
  for (int piece = lane; piece < pieces; piece += 32) {
    const Packed of_w = w[piece];
#pragma unroll
    for (int t = 0; t < kFewRouted; ++t) {
      if (t < tokens) sums[t] = dot(of_w, x[int64_t{t} * pieces + piece], sums[t]);
    }
  }
  float mine = 0;
#pragma unroll
  for (int t = 0; t < kFewRouted; ++t) {
    if (t >= tokens) break;
    const float sum = warp_sum(sums[t]);
    if (lane == t) mine = sum;
  }
  return mine;
}

template <int kEach>
__global__ void __launch_bounds__(kThreads) route_few_kernel(const RouteFewParams p) {
  extern __shared__ float memory[];  // [tokens, experts] logits; then what the choices work on
  __shared__ ListShared shared;
  const RouteParams& route = p.route;
  const auto warp = static_cast<int>(threadIdx.x / 32);
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const auto first = static_cast<int>(cluster_rank()) * kWarps + warp;
  cluster_arrive();
  for (int e = first; e < route.experts; e += kBlocks * kWarps) {
    const char* const row = static_cast<const char*>(p.weight) + e * p.in * int64_t{sizeof(Bf16)};
    for (int64_t at = lane * kLineBytes; at < p.in * int64_t{sizeof(Bf16)}; at += 32 * kLineBytes) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(row + at));
    }
  }
  for (auto e = static_cast<int>(threadIdx.x); e < route.experts; e += kThreads) {
    shared.counts[e] = 0;
  }
  dependency_wait();
  dependency_trigger();
  cluster_wait();
  for (int e = first; e < route.experts; e += kBlocks * kWarps) {
    const Bf16 logit = __float2bfloat16_rn(logits_of(p, e));
    if (lane >= route.tokens) continue;
    static_cast<Bf16*>(p.logits)[lane * route.experts + e] = logit;
    const uint32_t to = shared_address(memory + lane * route.experts + e);
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(shared_of_rank(to, 0)),
                 "f"(__bfloat162float(logit))
                 : "memory");
  }
  cluster_barrier();
  if (cluster_rank() != 0) return;
  const bool has_pair = warp < route.tokens && lane < route.k;
  int32_t expert = 0;
  int32_t place = 0;
  if (warp < route.tokens) {
    const float* const logits = memory + warp * route.experts;
    float* const shares = memory + (route.tokens + 2 * warp) * route.experts;
    expert = Router<kEach>(route, shares, shares + route.experts).run(warp, [&](int e) {
      return logits[e];
    });
  }
  if (has_pair) place = atomicAdd(shared.counts + expert, 1);
  make_runs(route, shared);
  if (has_pair) {
    route.list.pairs[shared.begins[expert] + place] = static_cast<int32_t>(warp * route.k + lane);
  }
}

}  // namespace

cudaError_t launch_route_few(const RouteFewParams& p, cudaStream_t stream) {
  if (p.route.tokens == 0) return cudaSuccess;
  if (!is_routable(p.route) || p.route.tokens > kFewRouted || p.in % kRun != 0) {
    return cudaErrorInvalidValue;
  }
  const auto floats = 3 * p.route.tokens * p.route.experts;
  const auto kernel =
      p.route.experts <= 128 ? route_few_kernel<4> : route_few_kernel<kMostExperts / 32>;
  const size_t bytes = sizeof(float) * static_cast<size_t>(floats);
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  return launch_pdl_cluster(kernel, dim3(kBlocks), dim3(kThreads), bytes, kBlocks, stream, p);
}

}  // namespace rudder::cuda
