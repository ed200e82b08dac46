// How scores become weights (attention_weights.cuh) where a lane has rows 2t and 2t + 1 of tokens g
// and g + 8 of a page (attention_few_rows.cuh). Included by the split kernel only.
#pragma once

#include "rudder/cuda/kernels/attention/attention_few_rows.cuh"
#include "rudder/cuda/kernels/attention/attention_weights.cuh"
#include "rudder/cuda/kernels/attention/attention_work.cuh"
#include "rudder/cuda/kernels/tree_path.cuh"

namespace rudder::cuda {

// What the lane's rows see, of a sequence that may be a tree.
struct FewRowsSight : Sight {
  const uint64_t* ancestors;  // of the step's tokens; nullptr: no trees
  const SplitSeq& seq;

  __device__ FewRowsSight(const AttentionParams& p, const SplitSeq& seq, const QueryRows& rows,
                          int32_t row)
      : Sight(rows, row, row + 1, rows.prefix, seq.kv_len - 1, p.config.window),
        ancestors(p.ancestors),
        seq(seq) {}

  // `value` is for tokens that are not on a row's path too.
  __device__ void hide(float (&s)[4], int32_t begin, int lane,
                       float value = minus_infinity()) const {
    const int g = lane / 4;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (!sees(e % 2, begin + e / 2 * 8 + g)) s[e] = value;
    }
    if (ancestors == nullptr) return;
    const int32_t prefix = seq.kv_len - seq.q_len;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint64_t path = ancestors[seq.q_begin + last[half] - prefix];
      if (path == 0) continue;
      const uint32_t seen = path_tokens(path, begin - prefix);
      if ((seen >> g & 1) == 0) s[half] = value;
      if ((seen >> (g + 8) & 1) == 0) s[2 + half] = value;
    }
  }
};

// Over the eight lanes that have the same rows.
__device__ inline float sum_of_lanes(float x) {
#pragma unroll
  for (int by = 4; by < 32; by *= 2) x += __shfl_xor_sync(kAllLanes, x, by);
  return x;
}

class FewRowsSoftmax {
 public:
  __device__ FewRowsSoftmax(const AttentionParams& p, const QueryRows& /*rows*/, int32_t kv_head,
                            int32_t /*row*/)
      : map_(p.scale, p.softcap, p.scales.k != nullptr ? p.scales.k[kv_head] : 1.0f) {}

  // Of kPages pages, each `step` tokens behind the one before.
  template <int kPages, int kOutTiles>
  __device__ void weigh(float (&s)[kPages][4], float (&out)[kOutTiles][4], int32_t begin,
                        const FewRowsSight& sight, int lane, int32_t step = 0) {
    map_scores(s, map_);
#pragma unroll
    for (int page = 0; page < kPages; ++page) {
      const int32_t first = begin + page * step;
      if (sight.is_partial(first, kPageTokens)) sight.hide(s[page], first, lane);
    }
    float shrink[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = rows_.max[half];
#pragma unroll
      for (int page = 0; page < kPages; ++page) {
        top = fmaxf(top, fmaxf(s[page][half], s[page][2 + half]));
      }
#pragma unroll
      for (int by = 4; by < 32; by *= 2) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, by));
      // A row that has seen nothing yet: weights exp2(-inf - 0) = 0.
      const float shift = top == minus_infinity() ? 0.0f : top;
      shrink[half] = exp2_fast(rows_.max[half] - shift);
      rows_.max[half] = top;
      float sum = 0;
#pragma unroll
      for (int page = 0; page < kPages; ++page) {
#pragma unroll
        for (int e = half; e < 4; e += 2) {
          s[page][e] = exp2_fast(s[page][e] - shift);
          sum += s[page][e];
        }
      }
      rows_.sum[half] = rows_.sum[half] * shrink[half] + sum;
    }
    if (!__any_sync(kAllLanes, shrink[0] != 1.0f || shrink[1] != 1.0f)) return;
#pragma unroll
    for (int i = 0; i < kOutTiles; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) out[i][e] *= shrink[e % 2];
    }
  }
  __device__ static RowEnd end_of(const AttentionParams& p, float v_scale, int32_t head) {
    return SoftmaxWeights::end_of(p, v_scale, head);
  }
  __device__ float over(int half, const RowEnd& end) const {
    return end.over(rows_.max[half], sum_of_lanes(rows_.sum[half]));
  }
  template <int kOutTiles>
  __device__ void settle(float (&)[kOutTiles][4]) const {}
  // Writes the maximum and the sum of each row to `to`, for merging them.
  __device__ void store(float2* to, int /*half*/, int lane) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 own = make_float2(rows_.max[half], sum_of_lanes(rows_.sum[half]));
      if (lane < 4) to[lane * 2 + half] = own;
    }
  }

 private:
  ScoreMap map_;
  SoftmaxRows rows_;  // of rows 2t and 2t + 1
};

// GateWeights, whose filter runs over the lanes of a row.
template <bool kUsual>
class FewRowsGate {
 public:
  // `row` may lie past the end.
  __device__ FewRowsGate(const AttentionParams& p, const QueryRows& rows, int32_t kv_head,
                         int32_t row)
      : gate_(p.gate), factor_(factor_of<kUsual>(p, kv_head)) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      share_[half] = share_of(gate_, gate_.sigma[rows.head(row + half, kv_head)]) * factor_;
    }
  }

  // The raw products of the 8 tokens from `begin` on, behind which weigh() goes on. Their weights
  // are made elsewhere.
  __device__ void look_back(const float (&s)[4], int32_t begin, const FewRowsSight& sight,
                            int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      before_[half] = sight.sees(half, begin + lane / 4) ? input_of(gate_, s[half]) : 0.0f;
    }
  }

  template <int kOutTiles>
  __device__ void weigh(float (&s)[1][4], float (&)[kOutTiles][4], int32_t begin,
                        const FewRowsSight& sight, int lane) {
    const bool is_partial = sight.is_partial(begin, kPageTokens);
    // With the first of these a hidden score is no input.
    if (is_partial) sight.hide(s[0], begin, lane, gate_.relu_pre ? minus_infinity() : 0.0f);
    weigh_page(s[0], lane);
    if (kUsual && gate_.relu_pre) return;  // hidden weights are 0
    if (is_partial) sight.hide(s[0], begin, lane, 0.0f);
  }

  // At the end: a row with a score that is NaN becomes NaN.
  template <int kOutTiles>
  __device__ void settle(float (&sums)[kOutTiles][4]) const {
    const float poison[2] = {sum_of_lanes(poison_[0]), sum_of_lanes(poison_[1])};
#pragma unroll
    for (int i = 0; i < kOutTiles; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[i][e] += poison[e % 2];
    }
  }
  __device__ static RowEnd end_of(const AttentionParams& p, float v_scale, int32_t head) {
    return GateWeights<kUsual>::end_of(p, v_scale, head);
  }
  __device__ float over(int /*half*/, const RowEnd& end) const {
    return end.scale;
  }

 private:
  __device__ void weigh_page(float (&s)[4], int lane) {
    float in[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) in[e] = input_of(gate_, s[e]);
    float total[4];
    filter(in, lane, total);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if constexpr (kUsual) {
        s[e] = saturated_fma(s[e], factor_, total[e] * share_[e % 2]);
        poison_[e % 2] = fmaf(in[e], 0.0f, poison_[e % 2]);
      } else {
        s[e] = fmaf(s[e], factor_, total[e] * share_[e % 2]);
        s[e] = min_or_nan(max_or_nan(s[e], gate_.low), gate_.high);
      }
    }
    before_[0] = in[2];
    before_[1] = in[3];
  }

  // total = the sums of the last `length` inputs of each of the lane's tokens. A token's neighbours
  // are of the same rows in other lanes; in front of token 0 they are of the page before.
  __device__ void filter(const float (&in)[4], int lane, float (&total)[4]) const {
#pragma unroll
    for (int e = 0; e < 4; ++e) total[e] = in[e];
    add_neighbours(in, lane, 1, total);
    if constexpr (kUsual) {
      if (gate_.length > 2) add_neighbours(in, lane, 2, total);
    } else {
#pragma unroll 1
      for (int back = 2; back < gate_.length; ++back) add_neighbours(in, lane, back, total);
    }
  }
  // The inputs of the tokens `back` before, of a gate that is that long.
  __device__ void add_neighbours(const float (&in)[4], int lane, int back,
                                 float (&total)[4]) const {
    if (!kUsual && back >= gate_.length) return;
    const int from = (lane - 4 * back) & 31;
    const bool is_here = lane + 4 * back < 32;  // the token that the reader wants is of its eight
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float before = e < 2 ? before_[e] : in[e - 2];
      total[e] += __shfl_sync(kAllLanes, is_here ? in[e] : before, from);
    }
  }

  const GateParams& gate_;
  float factor_;              // of raw products; usual gates: over the upper bound
  float share_[2];            // -sigma / length, times the factor
  float before_[2] = {0, 0};  // inputs of the last 8 tokens
  float poison_[2] = {0, 0};  // NaN once an input was
};

template <Weighting kWeighting>
struct FewRowsWeightsOf {
  using Type = FewRowsGate<kWeighting == Weighting::kUsualGate>;
};
template <>
struct FewRowsWeightsOf<Weighting::kSoftmax> {
  using Type = FewRowsSoftmax;
};

}  // namespace rudder::cuda
