// The weights of a gate where the columns of scores are tokens in runs (token_of_row), as the wgmma
// kernel has them: a lane has four neighbours of each page, so that of four scores two come from
// another lane. What is computed is that of GateWeights. Included by attention_wgmma.cu only.
#pragma once

#include "rudder/cuda/kernels/attention_weights.cuh"

namespace rudder::cuda {

// kUsual: is_usual(gate).
template <bool kUsual>
class RunGateWeights {
 public:
  __device__ RunGateWeights(const AttentionParams& p, const QueryRows& rows, int32_t kv_head,
                            int32_t row)
      : gate_(p.gate), factor_(p.scale * (p.k_scale != nullptr ? p.k_scale[kv_head] : 1.0f)) {
    if (kUsual) factor_ /= gate_.high;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sigma = gate_.sigma[rows.head(row + 8 * half, kv_head)];
      share_[half] = -sigma / static_cast<float>(gate_.length) * factor_;
    }
    is_short_ = __all_sync(kAllLanes, share_[0] <= 0 && share_[1] <= 0) || !gate_.relu_pre;
  }

  template <int kScores>
  __device__ void weigh(float (&s)[kScores], int32_t begin, const Sight& sight, int lane) {
    if constexpr (!kUsual) {
      weigh_pages<Way::kAny>(s, begin, sight, lane);
    } else if (sight.is_partial(begin, kScores * 2) || !is_short_) {
      weigh_pages<Way::kLong>(s, begin, sight, lane);
    } else {
      weigh_pages<Way::kShort>(s, begin, sight, lane);
    }
  }

  template <int kParts, int kSums>
  __device__ void settle(float (&sums)[kParts][kSums]) const {
    const float poison[2] = {row_sum(poison_[0]), row_sum(poison_[1])};
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int e = 0; e < kSums; ++e) sums[part][e] += poison[e / 2 % 2];
    }
  }
  __device__ float over(int /*half*/, float v_scale, int32_t head) const {
    return GateWeights::over_of(gate_, v_scale, head);
  }

 private:
  // kShort: all rows see all tokens, and a token's own input stands for its score: the two differ
  // where the score is below 0, and there the weight is 0 from either, as no share is above 0.
  enum class Way { kShort, kLong, kAny };

  template <Way kWay, int kScores>
  __device__ void weigh_pages(float (&s)[kScores], int32_t begin, const Sight& sight, int lane) {
    const float floor = gate_.relu_pre ? 0.0f : minus_infinity();
    const int t = lane % 4;
#pragma unroll
    for (int page = 0; page < kScores / 8; ++page) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto score = [&](int k) -> float& {
          return s[8 * page + 4 * (k / 2) + 2 * half + k % 2];
        };
        const int32_t run = begin + 16 * page + 4 * t;
        const auto is_hidden = [&](int k) {
          return kWay != Way::kShort && !sight.sees(half, run + k);
        };
        // The last 7 inputs in front of the run, then its own.
        float x[11];
        float(&before)[4] = before_[half];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          x[7 + k] = is_hidden(k) ? 0.0f : max_or_nan(score(k), floor);
        }
        look_back<kWay>(x, before, lane);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          before[k] = x[7 + k];
          float& p = score(k);
          if constexpr (kWay == Way::kAny) {
            p = fmaf(p, factor_, sum_back(x, k) * share_[half]);
            p = min_or_nan(max_or_nan(p, gate_.low), gate_.high);
          } else {
            const float back = fmaf(third(), x[5 + k], x[6 + k]);
            if constexpr (kWay == Way::kShort) {
              p = saturated_fma(x[7 + k], factor_ + share_[half], back * share_[half]);
            } else {
              p = saturated_fma(p, factor_, (x[7 + k] + back) * share_[half]);
            }
            // Each input is in one of these.
            if (k > 1) poison_[half] = fmaf(back, 0.0f, poison_[half]);
            if (k == 3) poison_[half] = fmaf(x[10], 0.0f, poison_[half]);
          }
          if (is_hidden(k)) p = 0;
        }
      }
    }
  }

  // What the filter of length 3 has beside that of length 2.
  __device__ float third() const {
    return gate_.length == 3 ? 1.0f : 0.0f;
  }

  __device__ float sum_back(const float (&x)[11], int k) const {
    float sum = 0;
#pragma unroll
    for (int back = 0; back < ops::kMaxFirLength; ++back) {
      sum = fmaf(back < gate_.length ? 1.0f : 0.0f, x[7 + k - back], sum);
    }
    return sum;
  }

  // x[0..6] of the lanes in front: from the one before 4 inputs (2 of a usual gate), from the one
  // before that 3. In front of a page's first lane comes the last one, with the page before.
  template <Way kWay>
  __device__ static void look_back(float (&x)[11], const float (&before)[4], int lane) {
    const int t = lane % 4;
    const int next = (lane & ~3) | ((t - 1) & 3);
#pragma unroll
    for (int k = kWay == Way::kAny ? 0 : 2; k < 4; ++k) {
      x[3 + k] = __shfl_sync(kAllLanes, t < 3 ? x[7 + k] : before[k], next);
    }
    if constexpr (kWay == Way::kAny) {
#pragma unroll
      for (int k = 1; k < 4; ++k) {
        x[k - 1] = __shfl_sync(kAllLanes, t < 2 ? x[7 + k] : before[k], lane ^ 2);
      }
    }
  }

  const GateParams& gate_;
  float factor_;              // of raw products; usual gates: over the upper bound
  float share_[2];            // -sigma / length, times the factor
  bool is_short_;             // Way::kShort may be taken
  float before_[2][4] = {};   // inputs of the last page
  float poison_[2] = {0, 0};  // NaN once an input was
};

}  // namespace rudder::cuda
