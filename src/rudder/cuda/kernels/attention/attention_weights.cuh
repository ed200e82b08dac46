// How scores become weights: the part of the attention kernels that differs between a softmax and a
// gate (ops::FirGate). A kernel is instantiated with one of them. Included by attention*.cu only.
//
// A lane has the scores of its rows g and g + 8 in tiles of 8 tokens: s[n] is row g of tokens 8n +
// 2t and the next one, then row g + 8 of both (attention_device.cuh has g and t).
#pragma once

#include "rudder/cuda/kernels/attention/attention_device.cuh"
#include "rudder/cuda/kernels/attention/attention_work.cuh"

namespace rudder::cuda {

// The tokens that a lane's two rows see, and those that all rows of the warp or block do.
struct Sight {
  int32_t first[2];
  int32_t last[2];
  int32_t open_begin;
  int32_t open_end;

  // `row` and `next`: the lane's rows; the tokens of all rows lie at positions [all_first,
  // all_last].
  __device__ Sight(const QueryRows& rows, int32_t row, int32_t next, int32_t all_first,
                   int32_t all_last, int32_t window) {
    last[0] = rows.position(row);
    last[1] = rows.position(next);
    first[0] = first_visible(last[0], window);
    first[1] = first_visible(last[1], window);
    open_end = all_first + 1;
    open_begin = first_visible(all_last, window);
  }
  // Does some row not see one of the tokens [begin, begin + count)?
  __device__ bool is_partial(int32_t begin, int32_t count) const {
    return begin < open_begin || begin + count > open_end;
  }
  __device__ bool sees(int half, int32_t token) const {
    return token >= first[half] && token <= last[half];
  }
  // Sets the scores of tokens that a row does not see: s[n] has tokens begin + 8n + 2t and the
  // next.
  template <int kTiles>
  __device__ void hide(float (&s)[kTiles][4], int32_t begin, int lane,
                       float value = minus_infinity()) const {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (!sees(e / 2, begin + n * 8 + lane % 4 * 2 + e % 2)) s[n][e] = value;
      }
    }
  }
};

// Both have weigh(): the raw products of the tokens from `begin` on become weights, and the sums of
// those before are rescaled where they have to be; and over(): what a row's sum is multiplied with
// at the end, from end_of(). attention_wgmma.cu has a softmax of its own.
class SoftmaxWeights {
 public:
  __device__ SoftmaxWeights(const AttentionParams& p, const QueryRows& /*rows*/, int32_t kv_head,
                            int32_t /*row*/)
      : map_(p.scale, p.softcap, p.scales.k != nullptr ? p.scales.k[kv_head] : 1.0f) {}

  template <int kTiles, int kOutTiles, typename SomeSight>
  __device__ void weigh(float (&s)[kTiles][4], float (&out)[kOutTiles][4], int32_t begin,
                        const SomeSight& sight, int lane) {
    map_scores(s, map_);
    if (sight.is_partial(begin, kTiles * 8)) sight.hide(s, begin, lane);
    softmax_step(s, rows_, out);
  }
  __device__ static RowEnd end_of(const AttentionParams& p, float v_scale, int32_t head) {
    return RowEnd::of(p, v_scale, head);
  }
  __device__ float over(int half, const RowEnd& end) const {
    return end.over(rows_.max[half], row_sum(rows_.sum[half]));
  }
  template <int kParts, int kSums>
  __device__ void settle(float (&)[kParts][kSums]) const {}
  // The maximum and the sum of a row, for merging it.
  __device__ float2 max_sum(int half) const {
    return make_float2(rows_.max[half], row_sum(rows_.sum[half]));
  }
  // Writes them to `to`, [row % 8].
  __device__ void store(float2* to, int half, int lane) const {
    const float2 own = max_sum(half);
    if (lane % 4 == 0) to[lane / 4] = own;
  }

 private:
  ScoreMap map_;
  SoftmaxRows rows_;
};

// x within [0, 1]; NaN becomes 0.
__device__ inline float saturated_fma(float a, float b, float c) {
  float x;
  asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(x) : "f"(a), "f"(b), "f"(c));
  return x;
}

// a b within [0, 1]; NaN becomes 0.
__device__ inline float saturated_product(float a, float b) {
  float x;
  asm("mul.rn.sat.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
  return x;
}

// In what weights are taken: a usual gate's relative to the upper bound.
template <bool kUsual>
__device__ float unit_of(const GateParams& gate) {
  return kUsual ? gate.high : 1.0f;
}
// Of raw products, with which a gate's weights are in its unit.
template <bool kUsual>
__device__ float factor_of(const AttentionParams& p, int32_t kv_head) {
  const float factor = p.scale * (p.scales.k != nullptr ? p.scales.k[kv_head] : 1.0f);
  return kUsual ? __fdividef(factor, p.gate.high) : factor;
}
__device__ inline float input_of(const GateParams& gate, float raw) {
  return max_or_nan(raw, gate.relu_pre ? 0.0f : minus_infinity());
}
// To L2, before a kernel waits for the one in front of it: nothing writes these.
__device__ inline void prefetch_gate(const AttentionParams& p) {
  constexpr int32_t kSector = 8;  // floats
  for (auto i = static_cast<int32_t>(threadIdx.x) * kSector; i < p.config.num_heads;
       i += static_cast<int32_t>(blockDim.x) * kSector) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p.gate.sigma + i));
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p.gate.gamma + i));
  }
}
// -sigma / length. Without the branches of a division, so that loads on both sides of it are on
// their way at once.
__device__ inline float share_of(const GateParams& gate, float sigma) {
  return __fdividef(-sigma, static_cast<float>(gate.length));
}

// Weights are zero where they are clipped, if anywhere.
__host__ __device__ inline bool clips_at_zero(const GateParams& gate) {
  return gate.low == 0.0f || gate.high == 0.0f;
}

// The filter runs along the tokens of a row, over the lanes of a quad; the inputs of the last 8
// tokens go from one call to the next. Nothing is normalised and nothing rescaled.
//
// A gate of length 2 or 3 that clips at 0 is usual and has a short way: its weights are taken
// relative to the upper bound, so that a multiplication clips them.
template <bool kUsual>
class GateWeights {
 public:
  // `row` may lie past the end.
  __device__ GateWeights(const AttentionParams& p, const QueryRows& rows, int32_t kv_head,
                         int32_t row)
      : gate_(p.gate), factor_(factor_of<kUsual>(p, kv_head)) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      share_[half] = share_of(gate_, gate_.sigma[rows.head(row + 8 * half, kv_head)]) * factor_;
    }
  }

  // The raw products of the 8 tokens from `begin` on, behind which weigh() goes on. Their weights
  // are made elsewhere.
  __device__ void look_back(const float (&s)[4], int32_t begin, const Sight& sight, int lane) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int32_t token = begin + lane % 4 * 2 + e % 2;
      before_[e] = sight.sees(e / 2, token) ? input_of(gate_, s[e]) : 0.0f;
    }
  }

  // There is one way through the filter, with or without tokens that some row does not see: a block
  // of the split kernel comes by a few times only, and fetching instructions takes longer.
  template <int kTiles, int kOutTiles>
  __device__ void weigh(float (&s)[kTiles][4], float (&)[kOutTiles][4], int32_t begin,
                        const Sight& sight, int lane) {
    const bool is_partial = sight.is_partial(begin, kTiles * 8);
    // With the first of these a hidden score is no input.
    if (is_partial) sight.hide(s, begin, lane, gate_.relu_pre ? minus_infinity() : 0.0f);
    if (kUsual || is_near(gate_)) {
      weigh_tiles<1>(s, lane);
      if (kUsual && gate_.relu_pre) return;  // hidden weights are 0
    } else {
      weigh_tiles<ops::kMaxFirLength / 2>(s, lane);
    }
    if (is_partial) sight.hide(s, begin, lane, 0.0f);
  }

  // At the end: a row with a score that is NaN becomes NaN. Of sums [...][kSums], whose elements 4i
  // and 4i + 1 are of row g, the next two of row g + 8.
  template <int kParts, int kSums>
  __device__ void settle(float (&sums)[kParts][kSums]) const {
    const float poison[2] = {row_sum(poison_[0]), row_sum(poison_[1])};
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int e = 0; e < kSums; ++e) sums[part][e] += poison[e / 2 % 2];
    }
  }
  __device__ static RowEnd end_of(const AttentionParams& p, float v_scale, int32_t head) {
    return {v_scale * p.gate.gamma[head] * unit_of<kUsual>(p.gate), minus_infinity()};
  }
  __device__ float over(int /*half*/, const RowEnd& end) const {
    return end.scale;
  }

 private:
  // kPairs: as far as the filter looks back.
  template <int kPairs, int kTiles>
  __device__ void weigh_tiles(float (&s)[kTiles][4], int lane) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      float in[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) in[e] = input_of(gate_, s[n][e]);
      float total[4];
      filter<kPairs>(in, lane, total);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        before_[e] = in[e];
        float& p = s[n][e];
        if constexpr (kUsual) {
          p = saturated_fma(p, factor_, total[e] * share_[e / 2]);
          // The sum of an odd token has the input of the even one in it.
          if (e % 2 != 0) poison_[e / 2] = fmaf(total[e], 0.0f, poison_[e / 2]);
        } else {
          p = fmaf(p, factor_, total[e] * share_[e / 2]);
          p = min_or_nan(max_or_nan(p, gate_.low), gate_.high);
        }
      }
    }
  }

  // total = the sums of the last `length` inputs of each of the lane's tokens. A token's neighbours
  // come as pairs from the lanes before it, and in front of the tile from the tile before.
  template <int kPairs>
  __device__ void filter(const float (&in)[4], int lane, float (&total)[4]) const {
    const auto tap = [this](int back) { return back < gate_.length ? 1.0f : 0.0f; };
    total[0] = in[0];
    total[2] = in[2];
    total[1] = kPairs == 1 ? in[0] + in[1] : fmaf(tap(1), in[0], in[1]);
    total[3] = kPairs == 1 ? in[2] + in[3] : fmaf(tap(1), in[2], in[3]);
    const int t = lane % 4;
#pragma unroll 1
    for (int pair = 1; pair <= (kPairs == 1 ? 1 : gate_.length / 2); ++pair) {
      const int from = (lane & ~3) | ((t - pair) & 3);
      const bool is_here = t + pair < 4;  // the pair that the reader wants is of this tile
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        const float low = __shfl_sync(kAllLanes, is_here ? in[e] : before_[e], from);
        const float high = __shfl_sync(kAllLanes, is_here ? in[e + 1] : before_[e + 1], from);
        total[e] = fmaf(tap(2 * pair - 1), high, fmaf(tap(2 * pair), low, total[e]));
        total[e + 1] = fmaf(tap(2 * pair), high, total[e + 1]);
        if (pair < kPairs) total[e + 1] = fmaf(tap(2 * pair + 1), low, total[e + 1]);
      }
    }
  }

  const GateParams& gate_;
  float factor_;                    // of raw products; usual gates: over the upper bound
  float share_[2];                  // -sigma / length, times the factor
  float before_[4] = {0, 0, 0, 0};  // inputs of the last tile
  float poison_[2] = {0, 0};        // NaN once an input was
};

template <Weighting kWeighting>
struct WeightsOf {
  using Type = GateWeights<kWeighting == Weighting::kUsualGate>;
};
template <>
struct WeightsOf<Weighting::kSoftmax> {
  using Type = SoftmaxWeights;
};

}  // namespace rudder::cuda
