// Clamped features at the head of a point's program, for a block that has a row, eight columns a
// thread: their ops come to shared memory while the kernel ahead still runs, since nobody writes
// them during a step, and their vectors to L2 (prefetch_features). Eight rows are on the way
// together, and eight products share one exchange between lanes. The warps wait for each other
// once, and once more where there are more than eight ops. Sums have the order of
// tap_features.cuh: a row has the same bits in both. Included by .cu files only.
#pragma once

#include "rudder/cuda/kernels/taps/tap_features.cuh"

namespace rudder::cuda {

struct FeaturesAheadShared {
  static constexpr int kMostOps = 64;
  alignas(16) unsigned char ops[kMostOps * sizeof(tap::TapOp)];
  float of_warp[kMostOps][32];
  float factor[kMostOps];
};

// Each of a warp's eight values summed over its lanes, as warp_sum() does it: lane i gets value
// i / 4.
__device__ inline float warp_sums_of_eight(const float (&values)[8]) {
  constexpr unsigned kLanes = 0xffffffffu;
  const unsigned lane = threadIdx.x % 32;
  const bool is_high[3] = {(lane & 16) != 0, (lane & 8) != 0, (lane & 4) != 0};
  float four[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    four[i] = (is_high[0] ? values[i + 4] : values[i]) +
              __shfl_xor_sync(kLanes, is_high[0] ? values[i] : values[i + 4], 16);
  }
  float two[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    two[i] = (is_high[1] ? four[i + 2] : four[i]) +
             __shfl_xor_sync(kLanes, is_high[1] ? four[i] : four[i + 2], 8);
  }
  float sum =
      (is_high[2] ? two[1] : two[0]) + __shfl_xor_sync(kLanes, is_high[2] ? two[0] : two[1], 4);
  sum += __shfl_xor_sync(kLanes, sum, 2);
  return sum + __shfl_xor_sync(kLanes, sum, 1);
}

// All threads of the block make the same calls, each with the same `shared`.
class FeaturesAhead {
 public:
  using Shared = FeaturesAheadShared;

  // Of a point's `num` ops; `column` is the thread's first. Past L1, which might hold what was
  // there before an edit.
  __device__ void load(Shared& shared, const tap::TapOp* ops, int num, const float* vectors,
                       int column, int width) {
    constexpr int kWords = sizeof(tap::TapOp) / sizeof(int4);
    const int words = min(num, Shared::kMostOps) * kWords;
    for (int i = static_cast<int>(threadIdx.x); i < words; i += static_cast<int>(blockDim.x)) {
      reinterpret_cast<int4*>(shared.ops)[i] = __ldcg(reinterpret_cast<const int4*>(ops) + i);
    }
    __syncthreads();
    const tap::TapOp& first = op(shared, 0);
    if (first.kind != tap::OpKind::kFeature || first.run > Shared::kMostOps) return;
    bool is_simple = true;
    for (int i = static_cast<int>(threadIdx.x) % 32; i < first.run; i += 32) {
      const tap::TapOp& one = op(shared, i);
      const bool is_probe = one.gate == tap::GateKind::kHard || one.gate == tap::GateKind::kSoft;
      is_simple = is_simple && !is_probe && one.norm == tap::FeatureNorm::kNone;
    }
    if (!__all_sync(0xffffffffu, is_simple)) return;
    vectors_ = vectors + column;
    is_inside_ = column < width;
    count_ = first.run;
  }
  // Ops that apply() runs.
  __device__ int count() const { return count_; }

  // Once, behind dependency_wait().
  __device__ void apply(Shared& shared, Floats& h, const TokenTapState& token, float* relays) {
    Floats rows[kTogether];
    load_rows(shared, 0, true, rows);
    const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll 1
    for (int first = 0; first < count_; first += kTogether) {
      float sums[kTogether] = {};
#pragma unroll
      for (int k = 0; k < kTogether; ++k) add_dot(sums[k], h, rows[k]);
      const bool is_last = first + kTogether >= count_;
      load_rows(shared, is_last ? 0 : first + kTogether, !is_last, rows);
      const float of_warp = warp_sums_of_eight(sums);
      if (lane() % 4 == 0) shared.of_warp[first + lane() / 4][warp] = of_warp;
    }
    __syncthreads();
    float factor = 0.0f;
    if (count_ <= kTogether) {
      factor = factor_of(shared, 0, token, relays, warp == 0);
    } else {
      for (int first = warp * kTogether; first < count_; first += num_warps() * kTogether) {
        const float own = factor_of(shared, first, token, relays, true);
        if (lane() % 4 == 0) shared.factor[first + lane() / 4] = own;
      }
      __syncthreads();
    }
#pragma unroll 1
    for (int first = 0; first < count_; first += kTogether) {
      if (count_ > kTogether) factor = shared.factor[first + lane() / 4];
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        const float by = __shfl_sync(0xffffffffu, factor, 4 * k);
        if (by == 0.0f) continue;
#pragma unroll
        for (int j = 0; j < kRun; ++j) h.v[j] = fmaf(by, rows[k].v[j], h.v[j]);
      }
      if (first + kTogether < count_) load_rows(shared, first + kTogether, false, rows);
    }
  }

 private:
  static constexpr int kTogether = 8;

  __device__ static int lane() {
    return static_cast<int>(threadIdx.x) % 32;
  }
  __device__ static int num_warps() {
    return static_cast<int>(blockDim.x) / 32;
  }
  __device__ static const tap::TapOp& op(const Shared& shared, int i) {
    return reinterpret_cast<const tap::TapOp*>(shared.ops)[i];
  }

  // This thread's part of the encoder rows, or decoder rows, of the ops from `first` on; 0 where
  // there is none.
  __device__ void load_rows(const Shared& shared, int first, bool of_encoder,
                            Floats (&rows)[kTogether]) const {
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      rows[k] = {};
      if (first + k >= count_ || !is_inside_) continue;
      const tap::TapOp& one = op(shared, first + k);
      const int32_t vector = of_encoder ? one.v2 : one.v1;
      if (vector == tap::kNoVector) continue;
      const auto* const from = reinterpret_cast<const float4*>(vectors_ + vector);
      const float4 low = __ldcg(from);
      const float4 high = __ldcg(from + 1);
      memcpy(&rows[k].v[0], &low, sizeof(low));
      memcpy(&rows[k].v[4], &high, sizeof(high));
    }
  }

  // By a warp: to lane i that of op first + i / 4; 0 where there is none, or it is for other
  // points, to which one of the warps leaves it.
  __device__ float factor_of(const Shared& shared, int first, const TokenTapState& token,
                             float* relays, bool leaves) const {
    float sums[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      sums[k] = lane() < num_warps() ? shared.of_warp[first + k][lane()] : 0.0f;
    }
    const float dot = warp_sums_of_eight(sums);
    if (first + lane() / 4 >= count_) return 0.0f;
    const tap::TapOp& own = op(shared, first + lane() / 4);
    float s = own.strength * scheduled(own.schedule, own, token);
    if (s != 0.0f) s *= opened(own.gate, own, 0.0f, token);
    const float change = own.v2 == tap::kNoVector ? __ldcg(relays + own.relay)
                                                  : feature_change(own, dot, RowNorms{});
    const float factor = s == 0.0f ? 0.0f : s * change;
    if (own.v1 != tap::kNoVector) return factor;
    if (leaves && lane() % 4 == 0) __stcg(relays + own.relay, factor);
    return 0.0f;
  }

  const float* vectors_ = nullptr;  // from this thread's column on
  bool is_inside_ = false;
  int count_ = 0;
};

}  // namespace rudder::cuda
