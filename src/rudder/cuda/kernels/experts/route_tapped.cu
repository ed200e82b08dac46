#include "rudder/cuda/kernels/experts/route_tapped.h"

#include "rudder/cuda/kernels/experts/route.cuh"
#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/taps/capture_point.cuh"
#include "rudder/cuda/kernels/taps/tap_ops.cuh"

namespace rudder::cuda {
namespace {

constexpr int kWarps = 8;  // of a block, a token each
constexpr int kThreads = 32 * kWarps;
constexpr int kRows = 3;  // of a warp, in shared memory: logits, and what Router works on

__device__ __forceinline__ double warp_sum_f64(double value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAll, value, step);
  return value;
}
__device__ __forceinline__ float warp_least(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value = fminf(value, __shfl_xor_sync(kAll, value, step));
  return value;
}

// The program of a token at router_logits, by a warp. `h`: its row of logits, in shared memory.
class LogitsProgram {
 public:
  __device__ LogitsProgram(const TapTableParams& table, const TapBatchParams& batch,
                           const ops::TapEntry& entry, int64_t token, float* h, int experts)
      : table_(table),
        token_{batch.since_prompt + token, batch.slot + token, table.latches},
        begin_(table.ops + (entry.ops >> 8)),
        end_(begin_ + (entry.ops & 0xff)),
        h_(h),
        experts_(experts),
        lane_(static_cast<int>(threadIdx.x % 32)) {}

  __device__ bool empty() const { return begin_ == end_; }

  __device__ void run() const {
#pragma unroll 1
    for (const tap::TapOp* op = begin_; op < end_; ++op) {
      const TapOpHead head(*op);
      if (head.kind != tap::OpKind::kExperts) {
        run_op(head, *op);
      } else if (op->lo <= 0.0f) {
        choose(head, *op, h_, true);
      }
      __syncwarp();
    }
  }
  // Of the ops on what the router chooses by; their gates read the logits.
  __device__ void change(float* scores) const {
#pragma unroll 1
    for (const tap::TapOp* op = begin_; op < end_; ++op) {
      const TapOpHead head(*op);
      if (head.kind == tap::OpKind::kExperts && op->lo > 0.0f) choose(head, *op, scores, false);
      __syncwarp();
    }
  }

 private:
  __device__ const float* vector(int32_t offset) const {
    return table_.vectors + offset;
  }
  // A value that all lanes have, of `of_lane` of each expert.
  template <typename OfExpert>
  __device__ float sum(OfExpert of_expert) const {
    float own = 0.0f;
    for (int e = lane_; e < experts_; e += 32) own += of_expert(e);
    return warp_sum(own);
  }
  __device__ float along(int32_t offset) const {
    const float* const v = vector(offset);
    return sum([&](int e) { return h_[e] * v[e]; });
  }
  __device__ float open(const TapOpHead& head, const tap::TapOp& op) const {
    const bool reads = head.gate == tap::GateKind::kHard || head.gate == tap::GateKind::kSoft;
    return opened(head.gate, op, reads ? along(op.gate_vector) : 0.0f, token_);
  }

  // chosen_logits() or chosen_scores() of `scores`, as far as strength and gate go.
  __device__ void choose(const TapOpHead& head, const tap::TapOp& op, float* scores,
                         bool are_logits) const {
    const float s = head.strength * scheduled(head.schedule, op, token_);
    if (s == 0.0f) return;
    const float share = s * open(head, op);
    if (share == 0.0f) return;
    float least = INFINITY;
    float most = -INFINITY;
    for (int e = lane_; e < experts_; e += 32) {
      least = fminf(least, scores[e]);
      most = fmaxf(most, scores[e]);
    }
    least = warp_least(least);
    most = warp_max(most);
    double log_sum = 0;
    if (are_logits) {
      double total = 0;
      for (int e = lane_; e < experts_; e += 32) total += exp(double{scores[e]} - double{most});
      log_sum = double{most} + log(warp_sum_f64(total));
    }
    const auto logged = [&](float score) { return static_cast<float>(double{score} - log_sum); };
    const float last = logged(least) - tap::kExpertMargin;
    const float first = logged(most) + tap::kExpertMargin;
    const float* const wanted = vector(head.v1);
    for (int e = lane_; e < experts_; e += 32) {
      const float want = wanted[e];
      const float to = want > 0.0f ? first : want < 0.0f ? last : logged(scores[e]);
      scores[e] = share == 1.0f ? to : fmaf(share, to - scores[e], scores[e]);
    }
  }

  // As TokenTaps::run_op().
  __device__ void run_op(const TapOpHead& head, const tap::TapOp& op) const {
    const bool is_score = head.kind == tap::OpKind::kScore;
    if (fills_latch(head.kind)) {
      if (is_score ? token_.since_prompt() >= 0 : token_.since_prompt() < -1) return;
      const float p = along(head.v1);
      if (lane_ != 0) return;
      if (is_score) {
        add_sample(token_.latch(op.latch), p);
      } else {
        leave_reading(op, p, token_);
      }
      return;
    }
    const float s = head.strength * scheduled(head.schedule, op, token_);
    if (s == 0.0f) return;
    const WantedTapSums wanted(head);
    const float* const some =
        can_be_for_some(head.kind) && op.v2 != tap::kNoVector ? vector(op.v2) : nullptr;
    TapSums sums = {};
    if (wanted.p) sums.p = along(head.v1);
    if (wanted.p2) sums.p2 = along(op.v2);
    if (wanted.squares) {
      sums.squares =
          sum([&](int e) { return some != nullptr && some[e] == 0.0f ? 0.0f : h_[e] * h_[e]; });
    }
    const float g = open(head, op);
    if (g == 0.0f) return;
    TapChange change = change_of(head.kind, op, s, sums);
    if (g != 1.0f) change = change.scaled(g);
    const float* const v1 = vector(head.v1);
    for (int e = lane_; e < experts_; e += 32) {
      if (some != nullptr && some[e] == 0.0f) continue;
      float value = fmaf(change.c1, v1[e], __fmul_rn(change.keep, h_[e]));
      if (change.has_second) value = fmaf(change.c2, vector(op.v2)[e], value);
      h_[e] = value;
    }
  }

  const TapTableParams& table_;
  const TokenTapState token_;
  const tap::TapOp* const begin_;
  const tap::TapOp* const end_;
  float* const h_;
  const int experts_;
  const int lane_;
};

// By a warp.
__device__ __forceinline__ void keep_logits(const PointTaps<kRouterPoints>& point,
                                            const ops::TapEntry& entry, int after, const float* h,
                                            int experts) {
  auto* const to = reinterpret_cast<float*>(point.place(entry, after));
  if (to == nullptr) return;
  for (int e = static_cast<int>(threadIdx.x % 32); e < experts; e += 32) to[e] = h[e];
}

template <int kEach>
__global__ void __launch_bounds__(kThreads)
    route_tapped_kernel(const __grid_constant__ RouteParams p,
                        const __grid_constant__ TapParams<kRouterPoints> taps) {
  extern __shared__ float of_warps[];  // [kWarps][kRows][experts]
  __shared__ ListShared shared;
  dependency_wait();
  dependency_trigger();
  const auto warp = static_cast<int>(threadIdx.x / 32);
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const int64_t token = int64_t{blockIdx.x} * kWarps + warp;
  begin_list(p, shared);
  const bool has_pair = token < p.tokens && lane < p.k;
  int32_t expert = 0;
  if (token < p.tokens) {
    float* const h = of_warps + kRows * warp * p.experts;
    const auto* const logits = static_cast<const Bf16*>(p.logits) + token * p.experts;
    for (int e = lane; e < p.experts; e += 32) h[e] = __bfloat162float(logits[e]);
    __syncwarp();
    const PointTaps<kRouterPoints> of_logits{taps, token, kLogitsPoint};
    const ops::TapEntry entry = of_logits.entry();
    const LogitsProgram program(taps.table, taps.batch, entry, token, h, p.experts);
    keep_logits(of_logits, entry, 0, h, p.experts);
    program.run();
    keep_logits(of_logits, entry, 1, h, p.experts);
    Router<kEach> router(p, h + p.experts, h + 2 * p.experts);
    const auto logit_of = [&](int e) { return h[e]; };
    expert = program.empty()
                 ? router.run(token, logit_of)
                 : router.run(token, logit_of, [&](float* scores) { program.change(scores); });
    const PointTaps<kRouterPoints> of_chosen{taps, token, kChosenPoint};
    const ops::TapEntry chosen_entry = of_chosen.entry();
#pragma unroll
    for (int after = 0; after < 2; ++after) {
      auto* const to = reinterpret_cast<int16_t*>(of_chosen.place(chosen_entry, after));
      if (to != nullptr && has_pair) to[lane] = static_cast<int16_t>(expert);
    }
  }
  list_pairs(p, shared, has_pair, token * p.k + lane, expert);
}

}  // namespace

cudaError_t launch_route_tapped(const RouteParams& p, const TapParams<kRouterPoints>& taps,
                                cudaStream_t stream) {
  if (p.tokens == 0) return cudaSuccess;
  if (!is_routable(p) || p.logits == nullptr || !is_aligned(taps.table.ops) ||
      !is_aligned(taps.batch.entries) || !is_aligned(taps.table.latches)) {
    return cudaErrorInvalidValue;
  }
  const auto blocks = static_cast<unsigned>((p.tokens + kWarps - 1) / kWarps);
  const size_t bytes = sizeof(float) * kRows * kWarps * static_cast<size_t>(p.experts);
  const auto kernel =
      p.experts <= 128 ? route_tapped_kernel<4> : route_tapped_kernel<kMostExperts / 32>;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  return launch_pdl(kernel, dim3(blocks), dim3(kThreads), bytes, stream, p, taps);
}

}  // namespace rudder::cuda
