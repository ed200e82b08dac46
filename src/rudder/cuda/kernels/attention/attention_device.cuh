// Instructions and fragments that the attention kernels share. Included by attention*.cu and
// pattern_keys.cuh only.
//
// A page of K or V of one head lies in shared memory as column groups of 128 bytes (64 bf16 or 128
// codes), each [16 tokens][128 bytes], swizzled by the copy engine: the 16-byte chunk c of row r is
// at chunk c ^ (r & 7). Columns past head_dim are zeros. Rows of 64 bytes (heads of 64 in codes)
// are [16 tokens][64 bytes], with chunk c of row r at c ^ (r / 2 & 3): two rows fill all banks.
// Fragments of mma.m16n8k16 are written in terms of a lane's g = lane / 4 and t = lane % 4: A holds
// rows g and g + 8 and k 2t, 2t + 1, 2t + 8, 2t + 9; B the same k of column n = g; C rows g and g +
// 8 of columns 2t, 2t + 1.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "rudder/cuda/kernels/attention/attention.h"
#include "rudder/cuda/kernels/device_barrier.cuh"

namespace rudder::cuda {

inline constexpr uint32_t kAllLanes = 0xffffffffu;
inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr int kPageTokens = kAttentionBlockSize;

__device__ inline float minus_infinity() {
  return __int_as_float(0xff800000);
}

// --- the copy engine ---

__device__ inline void prefetch_map(const uint64_t* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(map)) : "memory");
}
// One box of a KvTensorMap (16 rows) from column `column`, row `row` of the cache.
__device__ inline void copy_box(uint32_t to, const uint64_t* map, int32_t column, int32_t row,
                                uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}
// The same of one page, its rows in runs.
__device__ inline void copy_runs(uint32_t to, const KvTensorMap* map, int32_t column, int32_t page,
                                 uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3, %3, %3, %4}], [%5];" ::"r"(to),
      "l"(reinterpret_cast<uint64_t>(map->runs)), "r"(column), "r"(0), "r"(page), "r"(barrier)
      : "memory");
}
// K, then V of a page of a head, where the last column group is full.
__device__ inline void copy_whole_page(uint32_t to, const KvTensorMap* map, int32_t head,
                                       int32_t block, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %2, %2, %3, %4}], [%5];" ::"r"(to),
      "l"(reinterpret_cast<uint64_t>(map->page)), "r"(0), "r"(head), "r"(2 * block), "r"(barrier)
      : "memory");
}
// Bytes that lie one behind another: a multiple of 16, as their addresses.
__device__ inline void copy_bytes(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier)
      : "memory");
}
__device__ inline void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// --- numbers ---

__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// {low, high} rounded to bf16.
__device__ inline uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ inline uint32_t pack_half(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// The larger and the smaller of two numbers; NaN if one of them is.
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

// Two bf16 as f16; what f16 has no place for becomes its largest number, and NaN stays NaN.
__device__ inline uint32_t half_of_bf16(uint32_t two) {
  const float low = __uint_as_float(two << 16);
  const float high = __uint_as_float(two & 0xffff0000u);
  uint32_t packed;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// Four e4m3 as f16, exactly: x has the lower two.
__device__ inline uint2 widen_four(uint32_t four) {
  uint2 wide;
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, low;\ncvt.rn.f16x2.e4m3x2 %1, high;\n}"
      : "=r"(wide.x), "=r"(wide.y)
      : "r"(four));
  return wide;
}

// Four int8 as f16, exactly: 1024 + 128 + x has the bits of x + 128 at its end.
__device__ inline uint2 widen_four_int8(uint32_t four) {
  const uint32_t biased = four ^ 0x80808080u;
  uint2 wide = make_uint2(__byte_perm(biased, 0x64646464u, 0x4140),
                          __byte_perm(biased, 0x64646464u, 0x4342));
  constexpr uint32_t kBias = 0x64806480u;  // 1152, twice
  asm("sub.rn.f16x2 %0, %0, %1;" : "+r"(wide.x) : "r"(kBias));
  asm("sub.rn.f16x2 %0, %0, %1;" : "+r"(wide.y) : "r"(kBias));
  return wide;
}

template <KvType kType>
__device__ inline uint2 widen_codes(uint32_t four) {
  return kType == KvType::kInt8Tokens ? widen_four_int8(four) : widen_four(four);
}

// A raw product q . k to a base-2 exponent.
struct ScoreMap {
  float factor;  // of the raw product: to the exponent, or to the soft-cap's argument
  float cap;     // 0 = off; else softcap * log2(e)

  // k_scale is that of the KV head.
  __device__ ScoreMap(float scale, float softcap, float k_scale)
      : factor(scale * k_scale * (softcap > 0 ? 2.0f * kLog2E / softcap : kLog2E)),
        cap(softcap * kLog2E) {}

  // tanh(x) = 1 - 2 / (e^2x + 1): exact enough at both ends, where tanh.approx is not.
  __device__ float capped(float raw) const {
    return cap * (1.0f - __fdividef(2.0f, 1.0f + exp2_fast(raw * factor)));
  }
};

// --- tensor cores ---

// c += a . b, of bf16 or f16.
template <bool kHalf>
__device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kHalf) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

__device__ inline void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ inline void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ inline uint2 load_shared_pair(uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
  return v;
}
__device__ inline uint4 load_shared(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

__device__ inline void load_shared(uint32_t (&v)[4], uint32_t address) {
  const uint4 all = load_shared(address);
  v[0] = all.x;
  v[1] = all.y;
  v[2] = all.z;
  v[3] = all.w;
}
__device__ inline void load_shared(uint32_t (&v)[2], uint32_t address) {
  const uint2 both = load_shared_pair(address);
  v[0] = both.x;
  v[1] = both.y;
}

__device__ inline void store_shared(uint32_t address, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ inline void store_shared(uint32_t address, const uint32_t (&v)[4]) {
  store_shared(address, uint4{v[0], v[1], v[2], v[3]});
}
__device__ inline void store_shared(uint32_t address, const uint32_t (&v)[2]) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(v[0]), "r"(v[1]) : "memory");
}

// --- scales of tokens ---

// The unit of weights times the scales of values, which are f16: so these have all its bits where
// the largest of a row of values is 2^-8 and its weight 1/32, and become infinite, not wrong, where
// it is past 2^16.
inline constexpr float kWeightUnit = 0x1p-6f;

// What a row's sum is multiplied with at the end, beside the head's scale.
template <KvType kType>
__device__ inline float value_scale_of(const AttentionParams& p, int32_t kv_head) {
  if constexpr (scales_tokens(kType)) return kWeightUnit;
  return p.scales.v != nullptr ? p.scales.v[kv_head] : 1.0f;
}

// Of the keys, then the values of a page of a head.
using PageScales = float[2][kPageTokens];

// Sends the copies of a page's scales. One lane.
__device__ inline void copy_scales(PageScales& to, const AttentionParams& p, int32_t head,
                                   int32_t block, uint32_t barrier) {
  const float* const of_block = p.scales.tokens + int64_t{block} * p.scales.token_pitch;
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int32_t first = (part * p.config.num_kv_heads + head) * kPageTokens;
    copy_bytes(shared_address(to[part]), of_block + first, sizeof(to[part]), barrier);
  }
}

// --- softmax ---

// Of a lane's two rows, g and g + 8.
struct SoftmaxRows {
  float max[2] = {minus_infinity(), minus_infinity()};  // of base-2 exponents; in all lanes
  float sum[2] = {0, 0};                                // of this lane's columns
};

// s = exponents of the raw products.
template <int kTiles>
__device__ inline void map_scores(float (&s)[kTiles][4], const ScoreMap& map) {
  if (map.cap > 0) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[n][e] = map.capped(s[n][e]);
    }
  } else {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[n][e] *= map.factor;
    }
  }
}

// One step of the online softmax: s becomes the weights, sums so far shrink to the new maximum.
template <int kTiles, int kOutTiles>
__device__ inline void softmax_step(float (&s)[kTiles][4], SoftmaxRows& rows,
                                    float (&out)[kOutTiles][4]) {
  float shrink[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float top = rows.max[half];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      top = fmaxf(top, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    }
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
    // A row that has seen nothing yet: weights exp2(-inf - 0) = 0.
    const float shift = top == minus_infinity() ? 0.0f : top;
    shrink[half] = exp2_fast(rows.max[half] - shift);
    rows.max[half] = top;
    float sum = 0;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e) {
        s[n][e] = exp2_fast(s[n][e] - shift);
        sum += s[n][e];
      }
    }
    rows.sum[half] = rows.sum[half] * shrink[half] + sum;
  }
  if (!__any_sync(kAllLanes, shrink[0] != 1.0f || shrink[1] != 1.0f)) return;
#pragma unroll
  for (int i = 0; i < kOutTiles; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) out[i][e] *= shrink[e / 2];
  }
}

// How a row of a softmax ends.
struct RowEnd {
  float scale;  // of what was summed up
  float sink;   // a base-2 exponent that counts in the denominator; minus infinity: none

  // v_scale is that of the values, relative to what was summed up.
  __device__ static RowEnd of(const AttentionParams& p, float v_scale, int32_t head) {
    return {v_scale, p.sinks != nullptr ? p.sinks[head] * kLog2E : minus_infinity()};
  }
  // What the sums of a row are multiplied with whose weights, relative to 2^max, add up to `sum`.
  // Once a row, wherever its keys were cut.
  __device__ float over(float max, float sum) const {
    const float shift = max == minus_infinity() ? 0.0f : max;
    return scale / (sum + exp2_fast(sink - shift));
  }
};

// The sum of a row over its four lanes.
__device__ inline float row_sum(float sum) {
  sum += __shfl_xor_sync(kAllLanes, sum, 1);
  return sum + __shfl_xor_sync(kAllLanes, sum, 2);
}

// --- pages ---

// Shapes of a page in shared memory.
template <int kHeadDim, KvType kType>
struct PageShape {
  static constexpr bool kNarrow = is_narrow(kType);
  static constexpr int kColumns = kNarrow ? 128 : 64;  // of a column group
  static constexpr int kGroups = (kHeadDim + kColumns - 1) / kColumns;
  static constexpr bool kFullGroups = kGroups == 1 || kHeadDim % kColumns == 0;
  static constexpr int kPitch = kHeadDim * (kNarrow ? 1 : 2) <= 64 ? 64 : 128;  // of a token's row
  static constexpr int kGroupBytes = kPageTokens * kPitch;
  static constexpr int kBytes = kGroups * kGroupBytes;  // K or V
  static constexpr int kPerChunk = kNarrow ? 16 : 8;    // elements of 16 bytes
  static constexpr int kChunks = kHeadDim / kPerChunk;
  static constexpr int kRowBytes = kChunks * 16;  // of a token in the cache

  // The order of k inside a product q . k is ours to choose, as long as q and K have the same: a
  // lane takes whole 16-byte chunks. Of a group of 8 chunks lane t has 2t and 2t + 1 (which the
  // swizzle puts in different banks for the rows of one access), of half a group chunk t.
  __host__ __device__ static constexpr int chunks_in(int group) {
    const int left = kChunks - group * 8;
    return left > 4 ? 2 : 1;  // a lane's
  }
  __host__ __device__ static constexpr int steps_before(
      int group) {  // mma steps; in front all full
    return group * 2 * kPerChunk / 4;
  }
  static constexpr int kSteps = steps_before(kGroups - 1) + chunks_in(kGroups - 1) * kPerChunk / 4;
  static constexpr int kLaneChunks = (kGroups - 1) * 2 + chunks_in(kGroups - 1);  // of a token

  // Where chunk `chunk` of a column group of token `token` is in the group.
  __device__ static int chunk_at(int token, int chunk) {
    return token * kPitch + ((chunk ^ (kPitch == 64 ? token / 2 % 4 : token % 8)) << 4);
  }

  __device__ static int lane_chunk(int group, int i, int t) {
    return chunks_in(group) == 2 ? 2 * t + i : t;
  }

  // Calls for_step(step, column) for every other step of a lane's: the chunk's columns from
  // `column` on are those of two steps, past head_dim in a half group.
  template <typename ForStep>
  __device__ static void for_q_steps(int t, const ForStep& for_step) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int i = 0; i < chunks_in(group); ++i) {
        const int chunk = group * 8 + lane_chunk(group, i, t);
        const int step = steps_before(group) + i * kPerChunk / 4;
#pragma unroll
        for (int half = 0; half < kPerChunk / 8; ++half) {
          for_step(step + half * 2, chunk * kPerChunk + half * 8);
        }
      }
    }
  }
  // Two elements of q as products take them.
  __device__ static uint32_t q_word(uint32_t two) {
    return kNarrow ? half_of_bf16(two) : two;
  }

  // Keys of 8 tokens in registers: a lane's chunks of token g.
  struct Keys {
    uint4 chunk[kLaneChunks];
  };
  // `row`: the lane's token in the cache; nullptr = zeros.
  __device__ static void load_keys(Keys& keys, const uint8_t* row, int t) {
#pragma unroll
    for (int i = 0; i < kLaneChunks; ++i) {
      const int chunk = i / 2 * 8 + lane_chunk(i / 2, i % 2, t);
      keys.chunk[i] = {};
      if (row != nullptr && chunk < kChunks) {
        keys.chunk[i] = __ldcg(reinterpret_cast<const uint4*>(row) + chunk);
      }
    }
  }
  // Calls add(pair, v) with the fragments of V of each pair of chunks: v[0] and v[1] are columns of
  // the first one of tokens 0 to 7 and 8 to 15, then of the second one. A word has tokens 2t and
  // 2t + 1 of column g; of codes the columns 2g and 2g + 1, so that widen_codes() gives one and
  // the other. Tokens from `tokens` on are not the sequence's: whatever is there counts as zero (a
  // weight of zero does not stop a NaN).
  template <bool kTail, typename Add>
  __device__ static void for_values(uint32_t page, int tokens, int lane, const Add& add) {
    uint32_t keep[2] = {~0u, ~0u};
    if constexpr (kTail) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = half * 8 + lane % 4 * 2;
        keep[half] = (token < tokens ? 0xffffu : 0u) | (token + 1 < tokens ? 0xffff0000u : 0u);
      }
    }
    const int row = lane % 16;
#pragma unroll
    for (int pair = 0; pair < (kChunks + 1) / 2; ++pair) {
      const int chunk = pair % 4 * 2 + lane / 16;
      uint32_t v[4];
      load_matrices_transposed(v, page + pair / 4 * kGroupBytes + chunk_at(row, chunk));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (kTail) v[i] &= keep[i % 2];
        // It comes as columns 2g and 2g + 1 of one token, then of the next one.
        if constexpr (kNarrow) v[i] = __byte_perm(v[i], 0, 0x3120);
      }
      add(pair, v);
    }
  }
};

// Products of a page with 16 query rows by one warp.
template <int kHeadDim, KvType kType>
struct Page : PageShape<kHeadDim, kType> {
  using Shape = PageShape<kHeadDim, kType>;
  using Shape::kGroupBytes;
  using Shape::kLaneChunks;
  using Shape::kNarrow;
  using Shape::kPerChunk;
  using Shape::kPitch;
  using Shape::kSteps;
  using typename Shape::Keys;

  static constexpr int kOutTiles = kHeadDim / 8;
  using Query = uint32_t[kSteps][4];
  using Scores = float[2][4];
  using Sums = float[kOutTiles][4];
  using Weights = uint32_t[4];  // of a page, an A fragment

  // Of what a lane has, rows g (half 0) and g + 8.
  __device__ static int row_of(int lane, int half) { return lane / 4 + half * 8; }

  // q fragments of a warp: `low` and `high` are the rows g and g + 8, nullptr = zeros.
  __device__ static void load_q(Query& q, const __nv_bfloat16* low, const __nv_bfloat16* high,
                                int t) {
    Shape::for_q_steps(t, [&](int step, int column) {
      const bool inside = column < kHeadDim;
      uint4 a = {};
      uint4 b = {};
      if (inside && low != nullptr) a = *reinterpret_cast<const uint4*>(low + column);
      if (inside && high != nullptr) b = *reinterpret_cast<const uint4*>(high + column);
      place_q(q[step], a.x, a.y, b.x, b.y);
      place_q(q[step + 1], a.z, a.w, b.z, b.w);
    });
  }

  // Scores of 16 rows with the page's 16 tokens: s[n] has tokens 8n + 2t, 8n + 2t + 1.
  __device__ static void scores(Scores& s, const Query& q, uint32_t page, int lane) {
    const int g = lane / 4;
    const int t = lane % 4;
    float sums[kSums][2][4] = {};
#pragma unroll
    for (int i = 0; i < kLaneChunks; ++i) {
      const uint32_t chunk =
          page + i / 2 * kGroupBytes + Shape::chunk_at(g, Shape::lane_chunk(i / 2, i % 2, t));
#pragma unroll
      for (int n = 0; n < 2; ++n) {  // the swizzle of tokens g and g + 8 is the same
        add_products(sums[0][n], sums[kSums - 1][n], q, i, load_shared(chunk + n * 8 * kPitch));
      }
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) take_sums(s[n], sums[0][n], sums[kSums - 1][n]);
  }

  // What scores() gives for these tokens.
  __device__ static void scores_of(float (&s)[4], const Query& q, const Keys& keys) {
    float sums[kSums][4] = {};
#pragma unroll
    for (int i = 0; i < kLaneChunks; ++i) {
      add_products(sums[0], sums[kSums - 1], q, i, keys.chunk[i]);
    }
    take_sums(s, sums[0], sums[kSums - 1]);
  }

  // The A fragment of the weights of page i of those that s is of.
  template <int kTiles>
  __device__ static void pack_weights(Weights& a, const float (&s)[kTiles][4], int i) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float(&tile)[4] = s[2 * i + n];
      a[2 * n] = kNarrow ? pack_half(tile[0], tile[1]) : pack_bf16(tile[0], tile[1]);
      a[2 * n + 1] = kNarrow ? pack_half(tile[2], tile[3]) : pack_bf16(tile[2], tile[3]);
    }
  }

  __device__ static void pack_weights(Weights& a, const Scores& s) {
    pack_weights(a, s, 0);
  }

  // Raw products of a page's tokens become those of its keys.
  __device__ static void scale_keys(Scores& s, const PageScales& scales, int lane) {
    scale_tokens(s, 0, scales[0], 1.0f, kPageTokens, lane);
  }
  // Weights of page i of those that s is of become those of its codes, in kWeightUnit. Tokens from
  // `tokens` on are not the sequence's, and whatever they have becomes 0.
  template <int kTiles>
  __device__ static void scale_values(float (&s)[kTiles][4], int i, const PageScales& scales,
                                      int tokens, int lane) {
    scale_tokens(s, i, scales[1], 1.0f / kWeightUnit, tokens, lane);
  }
  __device__ static void scale_values(Scores& s, const PageScales& scales, int tokens, int lane) {
    scale_values(s, 0, scales, tokens, lane);
  }

  // The tokens that some row of the lane's weighs, a bit each.
  __device__ static uint32_t weighed(const Scores& s, int lane) {
    uint32_t tokens = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool counts = s[i / 2][i % 2] != 0 || s[i / 2][i % 2 + 2] != 0;  // also NaN
      tokens |= counts ? 1u << (i / 2 * 8 + i % 2) : 0u;
    }
    return tokens << lane % 4 * 2;
  }

  // out += weights * V of the page, of its first `tokens` tokens under kTail.
  template <bool kTail>
  __device__ static void add_values(Sums& out, const Weights& weights, uint32_t page, int tokens,
                                    int lane) {
    Shape::template for_values<kTail>(page, tokens, lane, [&](int pair, const uint32_t(&v)[4]) {
      if constexpr (kNarrow) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint2 low = widen_codes<kType>(v[2 * i]);
          const uint2 high = widen_codes<kType>(v[2 * i + 1]);
          mma<true>(out[4 * pair + 2 * i], weights, low.x, high.x);
          mma<true>(out[4 * pair + 2 * i + 1], weights, low.y, high.y);
        }
      } else {
        mma<false>(out[2 * pair], weights, v[0], v[1]);
        mma<false>(out[2 * pair + 1], weights, v[2], v[3]);
      }
    });
  }

  // Where a lane's sums belong: pieces of kPiece neighbouring columns, of row g (half 0) or g + 8.
  static constexpr int kPiece = kNarrow ? 4 : 2;
  static constexpr int kPieces = kHeadDim / 4 / kPiece;
  __device__ static int piece_column(int piece, int t) {
    return piece * 4 * kPiece + kPiece * t;
  }
  __device__ static void piece(float (&values)[kPiece], const float (&out)[kOutTiles][4], int piece,
                               int half) {
    if constexpr (kNarrow) {
      values[0] = out[2 * piece][2 * half];
      values[1] = out[2 * piece + 1][2 * half];
      values[2] = out[2 * piece][2 * half + 1];
      values[3] = out[2 * piece + 1][2 * half + 1];
    } else {
      values[0] = out[piece][2 * half];
      values[1] = out[piece][2 * half + 1];
    }
  }
  // Where a row's sum of a column lies in shared memory, so that neither a warp's writes nor a
  // block's reads meet in a bank.
  __device__ static int column_at(int row, int column) {
    return column ^ (kNarrow ? row % 2 * 16 : row % 4 * 8);
  }
  // Writes the sums of rows row_of(lane, half) to `to`, [row % 8][column_at(row % 8, column)].
  __device__ static void store_sums(float (*to)[kHeadDim], const Sums& out, int half, int lane) {
    const int g = lane / 4;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      float values[kPiece];
      piece(values, out, i, half);
      float* const at = &to[g][column_at(g, piece_column(i, lane % 4))];
      if constexpr (kPiece == 4) {
        *reinterpret_cast<float4*>(at) = make_float4(values[0], values[1], values[2], values[3]);
      } else {
        *reinterpret_cast<float2*>(at) = make_float2(values[0], values[1]);
      }
    }
  }
  // Row row_of(lane, half) of `out`, times `over`.
  __device__ static void write_row(__nv_bfloat16* to, const Sums& out, int half, float over,
                                   int lane) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      float values[kPiece];
      piece(values, out, i, half);
      auto* words = reinterpret_cast<uint32_t*>(to + piece_column(i, lane % 4));
#pragma unroll
      for (int w = 0; w < kPiece / 2; ++w) {
        words[w] = pack_bf16(values[2 * w] * over, values[2 * w + 1] * over);
      }
    }
  }

 private:
  template <int kTiles>
  __device__ static void scale_tokens(float (&s)[kTiles][4], int i, const float (&scales)[16],
                                      float factor, int tokens, int lane) {
    static_assert(kPageTokens == 16);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int token = n * 8 + lane % 4 * 2;
      const float2 of = *reinterpret_cast<const float2*>(scales + token);
      float(&tile)[4] = s[2 * i + n];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float scale = (e % 2 == 0 ? of.x : of.y) * factor;
        tile[e] = token + e % 2 < tokens ? tile[e] * scale : 0.0f;
      }
    }
  }

  // Two sums of every other step, so that fewer products wait for each other, where there are
  // registers for them.
  static constexpr int kSums = kHeadDim == 256 ? 1 : 2;

  // Products with a lane's i-th chunk of keys of 8 tokens; the two sums may be one.
  __device__ static void add_products(float (&even)[4], float (&odd)[4], const Query& q, int i,
                                      const uint4& k) {
    const int step = i * kPerChunk / 4;
    if constexpr (kNarrow) {
      const uint32_t fours[4] = {k.x, k.y, k.z, k.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint2 wide = widen_codes<kType>(fours[j]);
        mma<true>(j % 2 == 0 ? even : odd, q[step + j], wide.x, wide.y);
      }
    } else {
      mma<false>(even, q[step], k.x, k.y);
      mma<false>(odd, q[step + 1], k.z, k.w);
    }
  }
  __device__ static void take_sums(float (&s)[4], const float (&even)[4], const float (&odd)[4]) {
#pragma unroll
    for (int e = 0; e < 4; ++e) s[e] = kSums == 1 ? even[e] : even[e] + odd[e];
  }

  // Of 4 dims of two rows.
  __device__ static void place_q(uint32_t (&a)[4], uint32_t low0, uint32_t low1, uint32_t high0,
                                 uint32_t high1) {
    a[0] = Shape::q_word(low0);
    a[1] = Shape::q_word(high0);
    a[2] = Shape::q_word(low1);
    a[3] = Shape::q_word(high1);
  }
};

// Rows of a sequence's work on one KV head are pairs of token and q head of the group, token after
// token.
struct QueryRows {
  int32_t q_begin;
  int32_t count;  // q_len * group
  int32_t group;
  uint32_t reciprocal;  // 2^31 / group, rounded up
  int32_t prefix;       // kv_len - q_len: the position of the first token
  int64_t token_stride;
  int32_t head_begin;  // column of the group's first head

  template <int kHeadDim>
  __device__ static QueryRows of(const AttentionConfig& config, int32_t q_begin, int32_t q_len,
                                 int32_t kv_len, int32_t kv_head) {
    const int32_t group = config.num_heads / config.num_kv_heads;
    return QueryRows{q_begin,
                     q_len * group,
                     group,
                     ((1u << 31) + group - 1) / static_cast<uint32_t>(group),
                     kv_len - q_len,
                     int64_t{config.num_heads} * kHeadDim,
                     kv_head * group * kHeadDim};
  }
  // Row r's token of the sequence's new ones: r / group, exact below 2^27.
  __device__ int32_t token(int32_t r) const {
    return static_cast<int32_t>(__umulhi(2 * static_cast<uint32_t>(r), reciprocal));
  }
  // Where row r begins in q and out.
  template <int kHeadDim>
  __device__ int64_t offset(int32_t r) const {
    const int32_t t = token(r);
    return (q_begin + t) * token_stride + head_begin + (r - t * group) * kHeadDim;
  }
  // The q head of row r, which may lie past the end.
  __device__ int32_t head(int32_t r, int32_t kv_head) const {
    const int32_t inside = r < count ? r : count - 1;
    return kv_head * group + inside - token(inside) * group;
  }
  // The last position that row r sees; r may lie past the end.
  __device__ int32_t position(int32_t r) const { return prefix + token(r < count ? r : count - 1); }
};

// Sends the copies of the keys of one page of a KV head, box by box. One lane.
template <typename P>
__device__ inline void copy_keys(const KvTensorMap* map, int32_t num_kv_heads, int32_t head,
                                 int32_t block, uint32_t k, uint32_t barrier) {
  const int32_t row = (block * 2 * num_kv_heads + head) * kPageTokens;
#pragma unroll
  for (int group = 0; group < P::kGroups; ++group) {
    copy_box(k + group * P::kGroupBytes, map->packed, group * P::kColumns, row, barrier);
  }
}

// Sends the copies of one page of a KV head, box by box: K to `k`, V to `v`. One lane.
template <typename P>
__device__ inline void copy_page(const KvTensorMap* map, int32_t num_kv_heads, int32_t head,
                                 int32_t block, uint32_t k, uint32_t v, uint32_t barrier) {
  const int32_t k_row = (block * 2 * num_kv_heads + head) * kPageTokens;
  const int32_t v_row = k_row + num_kv_heads * kPageTokens;
#pragma unroll
  for (int group = 0; group < P::kGroups; ++group) {
    copy_box(k + group * P::kGroupBytes, map->packed, group * P::kColumns, k_row, barrier);
  }
#pragma unroll
  for (int group = 0; group < P::kGroups; ++group) {
    copy_box(v + group * P::kGroupBytes, map->packed, group * P::kColumns, v_row, barrier);
  }
}

}  // namespace rudder::cuda
