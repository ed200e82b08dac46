// The weights of a gate where a lane has runs of neighbouring tokens (token_of_row), as in the
// wgmma kernel: of the inputs of the filter only a run's first few come from another lane. What is
// computed is that of GateWeights. Included by attention_wgmma.cu only.
#pragma once

#include <cfloat>

#include "rudder/cuda/kernels/attention/attention_weights.cuh"
#include "rudder/cuda/kernels/attention/attention_wgmma_shared.cuh"

namespace rudder::cuda {

// Weights that a conversion clips at 0 and at kOne; NaN stays NaN.
template <bool kHalf>
struct ClippedPair;
template <>
struct ClippedPair<false> {
  // So small that a multiplication that clips at 1 clips no score: those from 2^40 times the
  // gate's upper bound on would be.
  static constexpr float kOne = 0x1p-40f;
  __device__ static uint32_t pack(float low, float high) {
    constexpr uint32_t kOnes = 0x2b80'2b80u;  // {kOne, kOne}
    uint32_t packed;
    asm("{\n.reg .b32 pair;\ncvt.rn.relu.bf16x2.f32 pair, %1, %2;\n"
        "min.NaN.bf16x2 %0, pair, %3;\n}"
        : "=r"(packed)
        : "f"(high), "f"(low), "r"(kOnes));
    return packed;
  }
};
template <>
struct ClippedPair<true> {
  static constexpr float kOne = 65504.0f;  // the largest f16
  __device__ static uint32_t pack(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.relu.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
  }
};

// kUsual: is_usual(gate). kHalf: weights are f16, else bf16. The tokens of four lanes' runs are a
// block: of a row lane t has 4 kRun b + kRun t + k, for each block b.
//
// Weights of a usual gate are taken relative to the upper bound, times kOne, and pack() clips them.
template <bool kUsual, bool kHalf>
class RunGateWeights {
 public:
  using Clipped = ClippedPair<kHalf>;

  // `q_scale`: of the lane's rows of q, as multiplied.
  __device__ RunGateWeights(const AttentionParams& p, const TileWork& tile, int32_t row,
                            const float (&q_scale)[2])
      : gate_(p.gate), has_gain_(tile.has_gain) {
    float factor = p.scale * tile.k_scale;
    if (kUsual) factor = __fdividef(factor * Clipped::kOne, gate_.high);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      factor_[half] = factor * q_scale[half];
      share_[half] = share_of(gate_, tile.sigma[tile.rows.head(row + 8 * half, 0)]) * factor_[half];
    }
  }

  // `sight_of`() is the Sight of the lane's rows, where some row does not see all tokens.
  template <int kScores, typename SightOf>
  __device__ void weigh(float (&s)[kScores], int32_t begin, bool is_partial,
                        const SightOf& sight_of, int lane) {
    // With the first of these a hidden score is no input. It is finite, as a factor may be 0.
    if (is_partial) hide(s, gate_.relu_pre ? -FLT_MAX : 0.0f, begin, sight_of(), lane);
    if constexpr (kUsual) {
      if (gate_.relu_pre) {  // hidden weights are 0
        if (has_gain_) {
          weigh_runs<Way::kGain>(s, lane);
        } else {
          weigh_runs<Way::kRectified>(s, lane);
        }
        return;
      }
      weigh_runs<Way::kLinear>(s, lane);
    } else {
      weigh_runs<Way::kAny>(s, lane);
    }
    if (is_partial) hide(s, 0.0f, begin, sight_of(), lane);
  }

  // The weights of the first page become zeros, where `drops`: a step has those of a page.
  template <int kSteps>
  __device__ static void drop_page(uint32_t (&weights)[kSteps][4], bool drops) {
    const uint32_t kept = drops ? 0 : ~0u;
#pragma unroll
    for (uint32_t& two : weights[0]) two &= kept;
  }

  // Sums so far stay as they are.
  template <int kParts, int kSums>
  __device__ void rescale(float (&)[kParts][kSums]) const {}

  __device__ static uint32_t pack(float low, float high) {
    if constexpr (kUsual) return Clipped::pack(low, high);
    return kHalf ? pack_half(low, high) : pack_bf16(low, high);
  }
  // What the sums of a row are multiplied with.
  __device__ float over(int /*half*/, const RowEnd& end) const {
    return kUsual ? end.scale * (gate_.high / Clipped::kOne) : end.scale;
  }

 private:
  static constexpr int kRun = kPageTokens / 4;

  // kRectified: with the rectifier, and no share is above 0. kGain: a share is. kLinear: without.
  enum class Way { kRectified, kGain, kLinear, kAny };

  static constexpr int kBack = ops::kMaxFirLength - 1;  // inputs in front of a token's own
  // What the next lane may ask for of a run.
  static constexpr int kBefore = kUsual ? 2 : kRun < kBack ? kRun : kBack;
  static_assert(kRun >= 4 && kRun % 4 == 0);

  __device__ static constexpr int index_of(int block, int half, int k) {
    return block * 2 * kRun + 4 * (k / 2) + 2 * half + k % 2;
  }

  // Sets the elements of tokens that rows do not see. Each token beside a constant, so that it
  // takes two instructions.
  template <int kScores>
  __device__ static void hide(float (&s)[kScores], float value, int32_t begin, const Sight& sight,
                              int lane) {
    const int32_t own = begin + kRun * (lane % 4);
    const auto hide_where = [&](const auto& is_hidden) {
#pragma unroll
      for (int block = 0; block < kScores / (2 * kRun); ++block) {
#pragma unroll
        for (int i = 0; i < 2 * kRun; ++i) {
          const int k = i % kRun;
          if (is_hidden(i / kRun, block * 4 * kRun + k)) s[index_of(block, i / kRun, k)] = value;
        }
      }
    };
    if (begin + kScores * 2 > sight.open_end) {
      const int32_t last[2] = {sight.last[0] - own, sight.last[1] - own};
      hide_where([&](int half, int token) { return token > last[half]; });
    }
    if (begin < sight.open_begin) {
      const int32_t first[2] = {sight.first[0] - own, sight.first[1] - own};
      hide_where([&](int half, int token) { return token < first[half]; });
    }
  }

  // What the filter adds up of a score: with kScaled already times the share, whose sign is turned.
  template <Way kWay>
  static constexpr bool kScaled = !kHalf && (kWay == Way::kRectified || kWay == Way::kLinear);
  template <Way kWay>
  __device__ float input_of(float score, int half) const {
    if constexpr (kScaled<kWay>) {
      return kWay == Way::kRectified ? saturated_product(score, -share_[half])
                                     : score * -share_[half];
    }
    if constexpr (kWay == Way::kLinear) return score;
    if constexpr (kWay == Way::kAny) {
      return max_or_nan(score, gate_.relu_pre ? 0.0f : minus_infinity());
    }
    return max_or_nan(score, 0.0f);
  }

  // The weight of a token of a usual gate, not clipped, from its score, its input and the sum of
  // those before it.
  template <Way kWay>
  __device__ float weight_of(float score, float own, float back, int half) const {
    if constexpr (kWay == Way::kGain) {
      return fmaf(score, factor_[half], (own + back) * share_[half]);
    }
    // The score stands for the input. With the rectifier the two differ where it is below 0: there
    // the weight is 0 from either, as it is where the factor would be below 0.
    const float sum = factor_[half] + share_[half];
    const float factor = kWay == Way::kRectified ? fmaxf(sum, 0.0f) : sum;
    return fmaf(score, factor, kScaled<kWay> ? -back : back * share_[half]);
  }

  template <Way kWay, int kScores>
  __device__ void weigh_runs(float (&s)[kScores], int lane) {
#pragma unroll
    for (int block = 0; block < kScores / (2 * kRun); ++block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto score = [&](int k) -> float& { return s[index_of(block, half, k)]; };
        const auto input = [&](int k) { return input_of<kWay>(score(k), half); };
        float last[kBefore];
#pragma unroll
        for (int k = 0; k < kBefore; ++k) last[k] = input(kRun - kBefore + k);
        // The last inputs in front of the run, then its own.
        float x[kBack + kRun];
        look_back<kWay>(x, last, before_[half], lane);
#pragma unroll
        for (int k = 0; k < kBefore; ++k) before_[half][k] = last[k];
#pragma unroll
        for (int k = 0; k < kRun; ++k) {
          const float own = k < kRun - kBefore ? input(k) : last[k - kRun + kBefore];
          x[kBack + k] = own;
          float& p = score(k);
          if constexpr (kWay == Way::kAny) {
            p = fmaf(p, factor_[half], sum_back(x, k) * share_[half]);
            p = min_or_nan(max_or_nan(p, gate_.low), gate_.high);
          } else {
            const float back = fmaf(third(), x[kBack + k - 2], x[kBack + k - 1]);
            p = weight_of<kWay>(p, own, back, half);
          }
        }
      }
    }
  }

  // What the filter of length 3 has beside that of length 2.
  __device__ float third() const {
    return gate_.length == 3 ? 1.0f : 0.0f;
  }

  __device__ float sum_back(const float (&x)[kBack + kRun], int k) const {
    float sum = 0;
#pragma unroll
    for (int back = 0; back <= kBack; ++back) {
      sum = fmaf(back < gate_.length ? 1.0f : 0.0f, x[kBack + k - back], sum);
    }
    return sum;
  }

  // x[0 .. kBack) of the lanes in front, as far as the gate may be long. In front of a block's
  // first lane comes the last one, with the block before.
  template <Way kWay>
  __device__ static void look_back(float (&x)[kBack + kRun], const float (&last)[kBefore],
                                   const float (&before)[kBefore], int lane) {
    const int t = lane % 4;
    const int next = (lane & ~3) | ((t - 1) & 3);
#pragma unroll
    for (int back = 1; back <= kBefore; ++back) {
      x[kBack - back] =
          __shfl_sync(kAllLanes, t < 3 ? last[kBefore - back] : before[kBefore - back], next);
    }
    // Of a short run, of the lane before that one.
#pragma unroll
    for (int back = kBefore + 1; back <= kBack && kWay == Way::kAny; ++back) {
      x[kBack - back] = __shfl_sync(
          kAllLanes, t < 2 ? last[2 * kBefore - back] : before[2 * kBefore - back], lane ^ 2);
    }
  }

  const GateParams& gate_;
  const bool has_gain_;            // TileWork::has_gain
  float factor_[2];                // of raw products; usual gates: times kOne over the upper bound
  float share_[2];                 // -sigma / length, times the factor
  float before_[2][kBefore] = {};  // the lane's last inputs
};

}  // namespace rudder::cuda
