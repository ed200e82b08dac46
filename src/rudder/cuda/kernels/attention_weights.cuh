// How scores become weights: the part of the attention kernels that differs between a softmax and a
// gate (ops::FirGate). A kernel is instantiated with one of them. Included by attention*.cu only.
//
// A lane has the scores of its rows g and g + 8 in tiles of 8 tokens: s[n] is row g of tokens 8n +
// 2t and the next one, then row g + 8 of both (attention_device.cuh has g and t).
#pragma once

#include "rudder/cuda/kernels/attention_device.cuh"
#include "rudder/cuda/kernels/attention_work.cuh"

namespace rudder::cuda {

// The tokens that a lane's two rows see, and those that all rows of the warp or block do.
struct Sight {
  int32_t first[2];
  int32_t last[2];
  int32_t open_begin;
  int32_t open_end;

  // `row`: the lane's row g; all rows lie in [all_begin, all_end).
  __device__ Sight(const QueryRows& rows, int32_t row, int32_t all_begin, int32_t all_end,
                   int32_t window) {
    last[0] = rows.position(row);
    last[1] = rows.position(row + 8);
    first[0] = first_visible(last[0], window);
    first[1] = first_visible(last[1], window);
    open_end = rows.position(all_begin) + 1;
    open_begin = first_visible(rows.position(all_end - 1), window);
  }
  // Does some row not see one of the tokens [begin, begin + count)?
  __device__ bool is_partial(int32_t begin, int32_t count) const {
    return begin < open_begin || begin + count > open_end;
  }
  __device__ bool sees(int half, int32_t token) const {
    return token >= first[half] && token <= last[half];
  }
};

// Both have weigh(): the raw products of the tokens from `begin` on become weights, and the sums of
// those before are rescaled where they have to be; and over(): what a row's sum is multiplied with
// at the end. attention_wgmma.cu has a softmax of its own.
class SoftmaxWeights {
 public:
  __device__ SoftmaxWeights(const AttentionParams& p, const QueryRows& /*rows*/, int32_t kv_head,
                            int32_t /*row*/)
      : map_(p.scale, p.softcap, p.k_scale != nullptr ? p.k_scale[kv_head] : 1.0f) {}

  template <int kTiles, int kOutTiles>
  __device__ void weigh(float (&s)[kTiles][4], float (&out)[kOutTiles][4], int32_t begin,
                        const Sight& sight, int lane) {
    map_scores(s, map_);
    if (sight.is_partial(begin, kTiles * 8)) {
      mask_scores(s, begin, sight.first, sight.last, lane % 4);
    }
    softmax_step(s, rows_, out);
  }
  __device__ float over(int half, float v_scale, int32_t /*head*/) const {
    return v_scale / row_sum(rows_.sum[half]);
  }
  // The maximum and the sum of a row, for merging it.
  __device__ float2 max_sum(int half) const {
    return make_float2(rows_.max[half], row_sum(rows_.sum[half]));
  }

 private:
  ScoreMap map_;
  SoftmaxRows rows_;
};

__device__ inline float max_or_nan(float a, float b) {
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
__device__ inline float min_or_nan(float a, float b) {
  float c;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}

// The filter runs along the tokens of a row, over the lanes of a quad; the inputs of the last 8
// tokens go from one call to the next. Nothing is normalised and nothing rescaled.
class GateWeights {
 public:
  // `row` may lie past the end.
  __device__ GateWeights(const AttentionParams& p, const QueryRows& rows, int32_t kv_head,
                         int32_t row)
      : gate_(p.gate), factor_(p.scale * (p.k_scale != nullptr ? p.k_scale[kv_head] : 1.0f)) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sigma = gate_.sigma[rows.head(row + 8 * half, kv_head)];
      share_[half] = sigma / static_cast<float>(gate_.length);
    }
  }

  template <int kTiles, int kOutTiles>
  __device__ void weigh(float (&s)[kTiles][4], float (&)[kOutTiles][4], int32_t begin,
                        const Sight& sight, int lane) {
    weigh(reinterpret_cast<float(&)[kTiles * 4]>(s), begin, sight, lane);
  }
  template <int kScores>
  __device__ void weigh(float (&s)[kScores], int32_t begin, const Sight& sight, int lane) {
    if (gate_.length <= kShortLength) {
      weigh_by_pairs<1>(s, begin, sight, lane);
    } else {
      weigh_by_pairs<kMaxGateLength / 2>(s, begin, sight, lane);
    }
  }
  __device__ float over(int /*half*/, float v_scale, int32_t head) const {
    return v_scale * gate_.gamma[head];
  }

 private:
  static constexpr int kShortLength = 3;  // one pair of neighbours is all that it reads

  template <int kPairs, int kScores>
  __device__ void weigh_by_pairs(float (&s)[kScores], int32_t begin, const Sight& sight, int lane) {
    if (sight.is_partial(begin, kScores * 2)) {
      weigh_tiles<kPairs, true>(s, begin, sight, lane);
    } else {
      weigh_tiles<kPairs, false>(s, begin, sight, lane);
    }
  }
  template <int kPairs, bool kPartial, int kScores>
  __device__ void weigh_tiles(float (&s)[kScores], int32_t begin, const Sight& sight, int lane) {
#pragma unroll
    for (int n = 0; n < kScores / 4; ++n) {
      float in[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[4 * n + e] *= factor_;
        in[e] = gate_.relu_pre ? max_or_nan(s[4 * n + e], 0.0f) : s[4 * n + e];
        if (kPartial && !sight.sees(e / 2, token_of(begin, n, e, lane))) in[e] = 0;
      }
      float total[4];
      filter<kPairs>(in, lane, total);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        before_[e] = in[e];
        float& p = s[4 * n + e];
        p = fmaf(-share_[e / 2], total[e], p);
        p = min_or_nan(max_or_nan(p, gate_.low), gate_.high);
        if (kPartial && !sight.sees(e / 2, token_of(begin, n, e, lane))) p = 0;
      }
    }
  }

  __device__ static int32_t token_of(int32_t begin, int n, int e, int lane) {
    return begin + n * 8 + lane % 4 * 2 + e % 2;
  }

  // total = the sums of the last `length` inputs of each of the lane's tokens. A token's neighbours
  // come as pairs from the lanes before it, and in front of the tile from the tile before.
  template <int kPairs>
  __device__ void filter(const float (&in)[4], int lane, float (&total)[4]) const {
    const auto tap = [this](int back) { return back < gate_.length ? 1.0f : 0.0f; };
    total[0] = in[0];
    total[2] = in[2];
    total[1] = fmaf(tap(1), in[0], in[1]);
    total[3] = fmaf(tap(1), in[2], in[3]);
    const int t = lane % 4;
#pragma unroll 1
    for (int pair = 1; pair <= kPairs; ++pair) {
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
  const float factor_;
  float share_[2];                  // sigma / length
  float before_[4] = {0, 0, 0, 0};  // inputs of the last tile
};

template <bool kGated>
struct WeightsOf {
  using Type = SoftmaxWeights;
};
template <>
struct WeightsOf<true> {
  using Type = GateWeights;
};

}  // namespace rudder::cuda
