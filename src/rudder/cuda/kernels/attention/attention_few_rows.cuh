// Products of a page with up to 8 query rows, for the split kernel: a decode has as many rows as
// its group has q heads. mma.m16n8k16 has 16 rows of A and 8 columns of B, and costs the same
// however few of either count. So keys and values are A here (tokens, then columns of V), and the
// query rows are B: half the products and half the sums of Page, where query rows are A.
//
// Fragments are written in terms of g and t as in attention_device.cuh. Scores are [16 tokens][8
// rows]: a lane has rows 2t and 2t + 1 of token g, then of token g + 8. Sums are [columns][8 rows]:
// a lane has rows 2t and 2t + 1 of one column, then of another one (column()).
#pragma once

#include "rudder/cuda/kernels/attention/attention_device.cuh"

namespace rudder::cuda {

inline constexpr int32_t kFewRows = 8;

// Has a sequence as few rows? Of these a segment has all.
__host__ __device__ inline bool has_few_rows(const AttentionConfig& config, int32_t q_len) {
  return q_len * (config.num_heads / config.num_kv_heads) <= kFewRows;
}

// An 8 x 8 matrix of 16-bit elements, of which lane (g, t) has columns 2t and 2t + 1 of row g,
// transposed.
__device__ inline uint32_t transposed(uint32_t two) {
  uint32_t moved;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(moved) : "r"(two));
  return moved;
}

template <int kHeadDim, KvType kType>
struct FewRowsPage : PageShape<kHeadDim, kType> {
  using Shape = PageShape<kHeadDim, kType>;
  using Shape::kGroupBytes;
  using Shape::kLaneChunks;
  using Shape::kNarrow;
  using Shape::kPerChunk;
  using Shape::kPitch;
  using Shape::kSteps;
  using typename Shape::Keys;

  static constexpr int kOutTiles = kHeadDim / 16;
  using Query = uint32_t[kSteps][2];
  using Scores = float[1][4];
  using Sums = float[kOutTiles][4];
  using Weights = uint32_t[2];  // of a page, a B fragment

  // Of what a lane has, rows 2t (half 0) and 2t + 1.
  __device__ static int row_of(int lane, int half) { return lane % 4 * 2 + half; }

  // q fragments of a warp. `row`: row g, nullptr = zeros.
  __device__ static void load_q(Query& q, const __nv_bfloat16* row, const __nv_bfloat16* /*none*/,
                                int t) {
    Shape::for_q_steps(t, [&](int step, int column) {
      uint4 a = {};
      if (column < kHeadDim && row != nullptr) a = *reinterpret_cast<const uint4*>(row + column);
      q[step][0] = Shape::q_word(a.x);
      q[step][1] = Shape::q_word(a.y);
      q[step + 1][0] = Shape::q_word(a.z);
      q[step + 1][1] = Shape::q_word(a.w);
    });
  }

  __device__ static void scores(Scores& s, const Query& q, uint32_t page, int lane) {
    scores(s[0], q, page, lane);
  }
  __device__ static void scores(float (&s)[4], const Query& q, uint32_t page, int lane) {
    float sums[kSums][4] = {};
#pragma unroll
    for (int i = 0; i < kLaneChunks; ++i) {
      const uint32_t chunk = page + i / 2 * kGroupBytes +
                             Shape::chunk_at(lane / 4, Shape::lane_chunk(i / 2, i % 2, lane % 4));
      // The swizzle of tokens g and g + 8 is the same.
      add_products(sums, q, i, load_shared(chunk), load_shared(chunk + 8 * kPitch));
    }
    take_sums(s, sums);
  }

  // Of 8 tokens in registers: a lane has rows 2t and 2t + 1 of token g, then nothing.
  __device__ static void scores_of(float (&s)[4], const Query& q, const Keys& keys) {
    float sums[kSums][4] = {};
#pragma unroll
    for (int i = 0; i < kLaneChunks; ++i) add_products(sums, q, i, keys.chunk[i], uint4{});
    take_sums(s, sums);
  }

  __device__ static void pack_weights(Weights& w, const Scores& s) {
    pack_weights(w, s[0]);
  }
  __device__ static void pack_weights(Weights& w, const float (&s)[4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float low = s[2 * half];
      const float high = s[2 * half + 1];
      w[half] = transposed(kNarrow ? pack_half(low, high) : pack_bf16(low, high));
    }
  }

  // As Page's.
  __device__ static void scale_keys(float (&s)[4], const PageScales& scales, int lane) {
    scale_tokens(s, scales[0], 1.0f, kPageTokens, lane);
  }
  __device__ static void scale_keys(Scores& s, const PageScales& scales, int lane) {
    scale_keys(s[0], scales, lane);
  }
  __device__ static void scale_values(float (&s)[4], const PageScales& scales, int tokens,
                                      int lane) {
    scale_tokens(s, scales[1], 1.0f / kWeightUnit, tokens, lane);
  }
  __device__ static void scale_values(Scores& s, const PageScales& scales, int tokens, int lane) {
    scale_values(s[0], scales, tokens, lane);
  }

  // The tokens that some row of the lane's weighs, a bit each.
  __device__ static uint32_t weighed(const Scores& s, int lane) {
    const auto counts = [&](int half) {  // also NaN
      return s[0][2 * half] != 0 || s[0][2 * half + 1] != 0;
    };
    return ((counts(0) ? 1u : 0u) | (counts(1) ? 0x100u : 0u)) << lane / 4;
  }

  // Page::add_values().
  template <bool kTail>
  __device__ static void add_values(Sums& out, const Weights& weights, uint32_t page, int tokens,
                                    int lane) {
    Shape::template for_values<kTail>(page, tokens, lane, [&](int pair, const uint32_t(&v)[4]) {
      if constexpr (kNarrow) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint2 low = widen_codes<kType>(v[2 * i]);
          const uint2 high = widen_codes<kType>(v[2 * i + 1]);
          mma<true>(out[2 * pair + i], {low.x, low.y, high.x, high.y}, weights[0], weights[1]);
        }
      } else {
        mma<false>(out[pair], {v[0], v[2], v[1], v[3]}, weights[0], weights[1]);
      }
    });
  }

  // The columns of a lane's sums, of out[tile][half] and of out[tile][2 + half].
  __device__ static int column(int tile, int lane) {
    return tile * 16 + (kNarrow ? lane / 4 * 2 : lane / 4);
  }
  static constexpr int kNextColumn = kNarrow ? 1 : 8;

  // Where a row's sum of a column lies in shared memory: neither writes of a warp nor reads of four
  // columns a lane meet in a bank.
  __device__ static int column_at(int row, int column) {
    return column ^ (kNarrow ? row / 2 % 2 * 16 : row / 2 % 4 * 8);
  }
  // Writes the sums of all rows to `to`, [row][column_at(row, column)]. `half`: of Page's rows.
  __device__ static void store_sums(float (*to)[kHeadDim], const Sums& out, int /*half*/,
                                    int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of(lane, half);
#pragma unroll
      for (int i = 0; i < kOutTiles; ++i) {
        const int first = column(i, lane);
        if constexpr (kNarrow) {
          *reinterpret_cast<float2*>(&to[row][column_at(row, first)]) =
              make_float2(out[i][half], out[i][2 + half]);
        } else {
          to[row][column_at(row, first)] = out[i][half];
          to[row][column_at(row, first + kNextColumn)] = out[i][2 + half];
        }
      }
    }
  }
  // Row row_of(lane, half) of `out`, times `over`.
  __device__ static void write_row(__nv_bfloat16* to, const Sums& out, int half, float over,
                                   int lane) {
#pragma unroll
    for (int i = 0; i < kOutTiles; ++i) {
      __nv_bfloat16* const at = to + column(i, lane);
      if constexpr (kNarrow) {
        *reinterpret_cast<uint32_t*>(at) = pack_bf16(out[i][half] * over, out[i][2 + half] * over);
      } else {
        at[0] = __float2bfloat16(out[i][half] * over);
        at[kNextColumn] = __float2bfloat16(out[i][2 + half] * over);
      }
    }
  }

 private:
  __device__ static void scale_tokens(float (&s)[4], const float (&scales)[kPageTokens],
                                      float factor, int tokens, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = half * 8 + lane / 4;
      const float scale = scales[token] * factor;
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e) s[e] = token < tokens ? s[e] * scale : 0.0f;
    }
  }

  // So that few products wait for each other.
  static constexpr int kSums = 4;

  // Products with a lane's i-th chunk of keys of tokens g (low) and g + 8.
  __device__ static void add_products(float (&sums)[kSums][4], const Query& q, int i,
                                      const uint4& low, const uint4& high) {
    const int step = i * kPerChunk / 4;
    if constexpr (kNarrow) {
      const uint32_t lows[4] = {low.x, low.y, low.z, low.w};
      const uint32_t highs[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint2 a = widen_codes<kType>(lows[j]);
        const uint2 b = widen_codes<kType>(highs[j]);
        mma<true>(sums[j], {a.x, b.x, a.y, b.y}, q[step + j][0], q[step + j][1]);
      }
    } else {
      mma<false>(sums[i % 2 * 2], {low.x, high.x, low.y, high.y}, q[step][0], q[step][1]);
      mma<false>(sums[i % 2 * 2 + 1], {low.z, high.z, low.w, high.w}, q[step + 1][0],
                 q[step + 1][1]);
    }
  }
  __device__ static void take_sums(float (&s)[4], const float (&sums)[kSums][4]) {
#pragma unroll
    for (int e = 0; e < 4; ++e) s[e] = (sums[0][e] + sums[1][e]) + (sums[2][e] + sums[3][e]);
  }
};

}  // namespace rudder::cuda
