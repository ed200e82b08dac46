#include "rudder/cuda/kernels/experts/route_few.h"

#include "rudder/cuda/kernels/device_barrier.cuh"
#include "rudder/cuda/kernels/experts/route.cuh"
#include "rudder/cuda/kernels/launch.h"

namespace rudder::cuda {
namespace {

constexpr int kBlocks = 8;
constexpr int kWarps = 8;  // of a block
constexpr int kThreads = 32 * kWarps;
static_assert(kWarps >= kFewRouted);  // a warp has a token

__device__ __forceinline__ float dot(const Packed& a, const Packed& b, float sum) {
  const Floats x = unpack(a);
  const Floats y = unpack(b);
#pragma unroll
  for (int j = 0; j < kRun; ++j) sum = fmaf(x.v[j], y.v[j], sum);
  return sum;
}

constexpr int kPieces = 8;  // of a row of W that a lane has at once

__device__ __forceinline__ void load_pieces(const Packed* row, int pieces, int first,
                                            Packed (&to)[kPieces]) {
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int piece = first + 32 * i + static_cast<int>(threadIdx.x % 32);
    to[i] = piece < pieces ? row[piece] : Packed{};
  }
}
// Adds a lane's part of the products with every token's row, which lie in shared memory.
__device__ __forceinline__ void add_pieces(const Packed (&w)[kPieces], const Packed* x, int pieces,
                                           int first, int tokens, float (&sums)[kFewRouted]) {
#pragma unroll
  for (int t = 0; t < kFewRouted; ++t) {
    if (t >= tokens) break;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int piece = first + 32 * i + static_cast<int>(threadIdx.x % 32);
      if (piece < pieces) sums[t] = dot(w[i], x[t * pieces + piece], sums[t]);
    }
  }
}

template <int kEach>
__global__ void __launch_bounds__(kThreads) route_few_kernel(const RouteFewParams p) {
  extern __shared__ __align__(16) float memory[];  // [tokens, in] bf16 x; then, as floats:
  float* const logits = memory + p.route.tokens * p.in / 2;          // [tokens, experts]
  float* const choices = logits + p.route.tokens * p.route.experts;  // what these work on
  __shared__ ListShared shared;
  const RouteParams& route = p.route;
  const auto warp = static_cast<int>(threadIdx.x / 32);
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const auto first = static_cast<int>(cluster_rank()) * kWarps + warp;
  cluster_arrive();
  const auto pieces = static_cast<int>(p.in / kRun);
  const auto tokens = static_cast<int>(route.tokens);
  const auto row_of = [&](int e) {
    return static_cast<const Packed*>(p.weight) + int64_t{e} * pieces;
  };
  Packed w[kPieces] = {};
  if (first < route.experts) load_pieces(row_of(first), pieces, 0, w);
  const int second = first + kBlocks * kWarps;
  Packed more[kPieces] = {};
  if (second < route.experts) load_pieces(row_of(second), pieces, 0, more);
  for (auto e = static_cast<int>(threadIdx.x); e < route.experts; e += kThreads) {
    shared.counts[e] = 0;
  }
  dependency_wait();
  dependency_trigger();
  auto* const x = reinterpret_cast<Packed*>(memory);
#pragma unroll 4
  for (auto i = static_cast<int>(threadIdx.x); i < tokens * pieces; i += kThreads) {
    x[i] = static_cast<const Packed*>(p.x)[i];
  }
  __syncthreads();
  cluster_wait();
  for (int e = first; e < route.experts; e += kBlocks * kWarps) {
    float sums[kFewRouted] = {};
    add_pieces(w, x, pieces, 0, tokens, sums);
    for (int at = 32 * kPieces; at < pieces; at += 32 * kPieces) {
      load_pieces(row_of(e), pieces, at, w);
      add_pieces(w, x, pieces, at, tokens, sums);
    }
    const int after = e + 2 * kBlocks * kWarps;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) w[i] = more[i];
    if (after < route.experts) load_pieces(row_of(after), pieces, 0, more);
    float mine = 0;
#pragma unroll
    for (int t = 0; t < kFewRouted; ++t) {
      if (t >= tokens) break;
      const float sum = warp_sum(sums[t]);
      if (lane == t) mine = sum;
    }
    if (lane >= tokens) continue;
    const Bf16 logit = __float2bfloat16_rn(mine);
    static_cast<Bf16*>(p.logits)[lane * route.experts + e] = logit;
    const uint32_t to = shared_address(logits + lane * route.experts + e);
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(shared_of_rank(to, 0)),
                 "f"(__bfloat162float(logit))
                 : "memory");
  }
  cluster_barrier();
  if (cluster_rank() != 0) return;
  const bool has_pair = warp < route.tokens && lane < route.k;
  int32_t expert = 0;
  int32_t offset = 0;
  if (warp < route.tokens) {
    const float* const own = logits + warp * route.experts;
    float* const shares = choices + 2 * warp * route.experts;
    expert = Router<kEach>(route, shares, shares + route.experts).run(warp, [&](int e) {
      return own[e];
    });
  }
  if (has_pair) offset = atomicAdd(shared.counts + expert, 1);
  make_runs(route, shared);
  if (has_pair) {
    route.list.pairs[shared.begins[expert] + offset] = static_cast<int32_t>(warp * route.k + lane);
  }
}

}  // namespace

cudaError_t launch_route_few(const RouteFewParams& p, cudaStream_t stream) {
  if (p.route.tokens == 0) return cudaSuccess;
  if (!is_routable(p.route) || p.route.tokens > kFewRouted || p.in % kRun != 0 ||
      p.in > kMostFewRoutedIn) {
    return cudaErrorInvalidValue;
  }
  const auto floats = p.route.tokens * (p.in / 2 + 3 * p.route.experts);
  const auto kernel =
      p.route.experts <= 128 ? route_few_kernel<4> : route_few_kernel<kMostExperts / 32>;
  const size_t bytes = sizeof(float) * static_cast<size_t>(floats);
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  return launch_pdl_cluster(kernel, dim3(kBlocks), dim3(kThreads), bytes, kBlocks, stream, p);
}

}  // namespace rudder::cuda
