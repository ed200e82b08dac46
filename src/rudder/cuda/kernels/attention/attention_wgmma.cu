// Tiled attention with wgmma (the structure of FlashAttention-3, Shah et al. 2024): a persistent
// block of three warpgroups, four with an fp8 cache. Of the first a warp takes tiles of rows
// (attention_wgmma_taker.cuh), one keeps rings of K and V tiles full, page after page through the
// copy engine (attention_wgmma_copier.cuh), and two carry q and the results
// (attention_wgmma_carrier.cuh). Two are consumers, each with 64 rows (pairs of token and q head)
// of the same KV head: S = q . K, with q in registers where there are enough, else from shared
// memory; the weights stay in registers as the A operand of weights . V. Of an fp8 cache K is
// multiplied as it comes, with q rounded to e4m3 (attention_e4m3_rows.cuh), and V becomes f16 on
// the way (attention_wgmma_converter.cuh), as the weights do. Of wide heads both consumers have the
// same 64 rows, each makes all weights and sums up half of the columns. The weights of a tile of
// keys are made while the tensor cores do the tile before it (softmax, gates as kBeside says) or
// the products of the other consumer.
//
// Blocks take tiles in the order of the work list (longest first in each section). What a tile
// gives does not depend on the block, nor what parts of its keys give on the order in which they
// are done (attention_wgmma_parts.cuh).
//
// A token of a tree comes as a sequence of one new token, whose last keys lie apart: the copier
// brings those row by row to where a page would have them. So its row has the bits of plain
// decoding. It reads the cache once a token, as decodes do in this kernel.
#include <type_traits>

#include "rudder/cuda/kernels/attention/attention_device.cuh"
#include "rudder/cuda/kernels/attention/attention_e4m3_rows.cuh"
#include "rudder/cuda/kernels/attention/attention_run_weights.cuh"
#include "rudder/cuda/kernels/attention/attention_weights.cuh"
#include "rudder/cuda/kernels/attention/attention_wgmma.cuh"
#include "rudder/cuda/kernels/attention/attention_wgmma_carrier.cuh"
#include "rudder/cuda/kernels/attention/attention_wgmma_converter.cuh"
#include "rudder/cuda/kernels/attention/attention_wgmma_copier.cuh"
#include "rudder/cuda/kernels/attention/attention_wgmma_parts.cuh"
#include "rudder/cuda/kernels/attention/attention_wgmma_shared.cuh"
#include "rudder/cuda/kernels/attention/attention_wgmma_taker.cuh"
#include "rudder/cuda/kernels/attention/attention_work.cuh"
#include "rudder/cuda/kernels/launch.h"

namespace rudder::cuda {
namespace {

// By how much a row's base-2 exponents may pass the maximum that they are taken relative to:
// weights stay below 256, which f16 and bf16 hold as precisely as 1.
constexpr float kMaxLag = 8;

__device__ void group_barrier(int id) {
  asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory");
}

// A softmax whose maximum may lag behind the scores. Its `shrink` is what the sums of earlier tiles
// are to be multiplied with; they are in flight while a tile is weighed.
class LaggingSoftmax {
 public:
  // `q_scale`: of the lane's rows of q, as multiplied.
  __device__ LaggingSoftmax(const AttentionParams& p, const TileWork& tile, int32_t /*row*/,
                            const float (&q_scale)[2])
      : map_(p.scale, p.softcap, tile.k_scale), q_scale_{q_scale[0], q_scale[1]} {}

  // `sight_of`() is the Sight of the lane's rows, where some row does not see all tokens.
  template <int kScores, typename SightOf>
  __device__ void weigh(float (&s)[kScores], int32_t begin, bool is_partial,
                        const SightOf& sight_of, int lane) {
    float factors[2] = {map_.factor * q_scale_[0], map_.factor * q_scale_[1]};
    if (map_.cap > 0) {
#pragma unroll
      for (int e = 0; e < kScores; ++e) s[e] = map_.capped(s[e] * q_scale_[e / 2 % 2]);
      factors[0] = factors[1] = 1;
    }
    if (is_partial) hide(s, begin, sight_of(), lane);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float factor = factors[half];
      float top = minus_infinity();
#pragma unroll
      for (int e = 2 * half; e < kScores; e += 4) top = fmaxf(top, fmaxf(s[e], s[e + 1]));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
      top = fmaxf(rows_.max[half], top * factor);
      // A maximum that is a little too low does no harm, and sums need not shrink.
      if (top - rows_.max[half] <= kMaxLag) top = rows_.max[half];
      // A row that has seen nothing yet: weights exp2(-inf - 0) = 0.
      const float shift = top == minus_infinity() ? 0.0f : top;
      shrink_[half] = exp2_fast(rows_.max[half] - shift);
      rows_.max[half] = top;
      float sum = 0;
#pragma unroll
      for (int e = 2 * half; e < kScores; e += 4) {
        s[e] = exp2_fast(fmaf(s[e], factor, -shift));
        s[e + 1] = exp2_fast(fmaf(s[e + 1], factor, -shift));
        sum += s[e] + s[e + 1];
      }
      rows_.sum[half] = rows_.sum[half] * shrink_[half] + sum;
    }
  }

  // What the tile that was weighed last asks of the sums before it.
  template <int kParts, int kSums>
  __device__ void rescale(float (&out)[kParts][kSums]) const {
    if (!__any_sync(kAllLanes, shrink_[0] != 1.0f || shrink_[1] != 1.0f)) return;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int e = 0; e < kSums; ++e) out[part][e] *= shrink_[e / 2 % 2];
    }
  }
  __device__ float over(int half, const RowEnd& end) const {
    return end.over(rows_.max[half], row_sum(rows_.sum[half]));
  }

  // What the thread has of its rows.
  __device__ float4 rows() const {
    return make_float4(rows_.max[0], rows_.max[1], rows_.sum[0], rows_.sum[1]);
  }

 private:
  // Each score beside a constant, so that hiding takes two instructions a score.
  template <int kScores>
  __device__ static void hide(float (&s)[kScores], int32_t begin, const Sight& sight, int lane) {
    if (begin + kScores * 2 > sight.open_end) {
#pragma unroll
      for (int e = 0; e < kScores; ++e) {
        const int32_t most = sight.last[e / 2 % 2] - begin - 2 * (lane % 4);
        if (e / 4 * 8 + e % 2 > most) s[e] = minus_infinity();
      }
    }
    if (begin < sight.open_begin) {
#pragma unroll
      for (int e = 0; e < kScores; ++e) {
        const int32_t least = sight.first[e / 2 % 2] - begin - 2 * (lane % 4);
        if (e / 4 * 8 + e % 2 < least) s[e] = minus_infinity();
      }
    }
  }

  ScoreMap map_;
  float q_scale_[2];
  SoftmaxRows rows_;
  float shrink_[2];
};

template <int kHeadDim, KvType kType, Weighting kWeighting, bool kTrees, bool kCuts>
class Consumer {
 public:
  using S = Shape<kHeadDim, kType, kWeighting, kTrees>;
  static constexpr bool kGated = S::kGated;
  // Are the weights of a tile of keys made beside the sums of the tile before, or when those are
  // there? As measured (docs/adr/0037-gates-on-a-gpu.md).
  static constexpr bool kBeside =
      !kGated || (kWeighting == Weighting::kUsualGate && S::kKeepsQ && !S::kFp8);
  using Weights =
      std::conditional_t<kGated, RunGateWeights<kWeighting == Weighting::kUsualGate, S::kFp8>,
                         LaggingSoftmax>;
  using Shared = WgmmaShared<kHeadDim, kType, kWeighting, kTrees>;
  static constexpr int kScores = S::kTokens / 2;    // a thread's, of a tile
  static constexpr int kSums = S::kSumColumns / 2;  // a thread's, of a part
  static constexpr int kWeightSteps = S::kTokens / 16;
  static constexpr int kRowChunks = S::kOutColumns / 8;  // 16-byte chunks of a row of results
  static constexpr int kKeptSteps = S::kKeepsQ ? S::kScoreSteps : 1;  // of q in registers

  __device__ Consumer(const AttentionParams& params, Shared& shared)
      : p_(params),
        shared_(shared),
        index_(static_cast<int32_t>(threadIdx.x) / kGroupThreads - 1 - S::kConverters),
        thread_(static_cast<int32_t>(threadIdx.x) % kGroupThreads) {}

  __device__ void run() {
    if (index_ == 1) pass_turn();
    RingCursor<kTileStages> slot;
    while (true) {
      barrier_wait(shared_address(&shared_.tile_ring.full[slot.stage]), slot.phase);
      const TileWork& tile = shared_.tile[slot.stage];
      if (tile.num_pages == 0) return;
      barrier_wait(shared_address(&shared_.q_full[index_][q_.stage]), q_.phase);
      if constexpr (S::kWide) {  // the other columns of q
        barrier_wait(shared_address(&shared_.q_full[1 - index_][q_.stage]), q_.phase);
      }
      attend(tile, shared_.part[slot.stage]);
      slot.advance();
      q_.advance();
    }
  }

 private:
  // Where q of the consumer's rows begins, and where its results go.
  __device__ uint32_t q_address() const {
    return shared_address(shared_.q[S::kWide ? 0 : index_][q_.stage]);
  }
  __device__ uint32_t out_address() const {
    return shared_address(shared_.q[index_][S::kKeepsQ ? S::kOutBuffer : q_.stage]);
  }

  __device__ void attend(const TileWork& tile, const TilePart& part) {
    const int32_t row_begin = tile.row_begin + S::first_row(index_);
    const int32_t row = row_begin + lane_row();
    const auto sight_of = [&] {
      return Sight(tile.rows, row, row + 8, tile.rows.position(row_begin),
                   tile.rows.position(row_begin + kConsumerRows - 1), p_.config.window);
    };
    // All rows see the tokens [open_begin, open_end).
    const int32_t open_begin = sight_of().open_begin;
    const int32_t open_end = sight_of().open_end;
    const auto is_partial = [&](int32_t tokens) {
      return tokens < open_begin || tokens + S::kTokens > open_end;
    };
    const int32_t lane = thread_ % 32;
    const int32_t tiles = ceil_div(tile.num_pages, S::kPages);
    int32_t begin = tile.first_page * kPageTokens;

    float out[S::kSumParts][kSums] = {};
    float s[kScores];
    uint32_t weights[kWeightSteps][4];
    uint32_t q[kKeptSteps][4];
    float q_scale[2] = {1.0f, 1.0f};
    keep_q(q, q_scale);
    Weights weigher(p_, tile, row, q_scale);
    wait_keys();
    take_turn();
    begin_scores(s, q);
    pass_turn();
    wgmma_wait<0>();
    hold(s);
    release(shared_.k_ring, k_cursor_);
    weigher.weigh(s, begin, is_partial(begin), sight_of, lane);
    pack(weights, s);
    if constexpr (kCuts && kGated) weigher.drop_page(weights, part.has_lead);
    for (int32_t i = 1; i < tiles; ++i) {
      begin += S::kTokens;
      wait_values();
      wait_keys();
      take_turn();
      begin_scores(s, q);
      begin_sums(out, weights);
      pass_turn();
      wgmma_wait<1>();
      hold(s);
      release(shared_.k_ring, k_cursor_);
      if constexpr (kBeside) weigher.weigh(s, begin, is_partial(begin), sight_of, lane);
      wgmma_wait<0>();
#pragma unroll
      for (int part = 0; part < S::kSumParts; ++part) hold(out[part]);
      release(shared_.v_ring, v_cursor_);
      if constexpr (!kBeside) weigher.weigh(s, begin, is_partial(begin), sight_of, lane);
      weigher.rescale(out);
      pack(weights, s);
    }
    wait_values();
    if constexpr (!S::kFp8) clear_tail(tile, tiles - 1, shared_address(shared_.v[v_cursor_.stage]));
    begin_sums(out, weights);
    wgmma_wait<0>();
#pragma unroll
    for (int part = 0; part < S::kSumParts; ++part) hold(out[part]);
    release(shared_.v_ring, v_cursor_);
    if constexpr (kCuts) {
      finish_tile(tile, part, out, weigher);
    } else {
      wait_for_room();
      write(tile, out, weigher);
    }
    barrier_arrive(shared_address(&shared_.out_full[index_][q_.stage]));
  }

  // The consumers issue their products in turns, so that one's softmax runs under the other's
  // products. Consumer 0 begins; both have as many turns.
  __device__ void take_turn() const {
    if constexpr (!S::kTakesTurns) return;
    asm volatile("bar.sync %0, 256;" ::"r"(kTurnBarrier + index_) : "memory");
  }
  __device__ void pass_turn() const {
    if constexpr (!S::kTakesTurns) return;
    asm volatile("bar.arrive %0, 256;" ::"r"(kTurnBarrier + 1 - index_) : "memory");
  }

  __device__ void wait_keys() {
    barrier_wait(shared_address(&shared_.k_ring.full[k_cursor_.stage]), k_cursor_.phase);
  }
  // Before the scores that are computed beside the sums: between products that are in flight ptxas
  // takes no branches.
  __device__ void wait_values() {
    barrier_wait(shared_address(&shared_.v_ring.full[v_cursor_.stage]), v_cursor_.phase);
  }

  // The warp's rows of q, where it keeps them; where they were is free then. Of an fp8 cache also
  // what the products of the lane's rows are to be multiplied with.
  __device__ void keep_q(uint32_t (&q)[kKeptSteps][4], float (&q_scale)[2]) {
    if constexpr (S::kKeepsQ && S::kFp8) {
      round_q(q, q_scale);
    } else if constexpr (S::kKeepsQ) {
      const int32_t r = thread_ / 32 * 16 + thread_ % 16;
#pragma unroll
      for (int step = 0; step < kKeptSteps; ++step) {
        const int32_t c = 2 * step + thread_ % 32 / 16;
        load_matrices(q[step], q_address() + chunk_offset<S::kQGroupBytes>(r, c));
      }
      barrier_arrive(shared_address(&shared_.q_empty[index_]));
    } else if constexpr (S::kFp8) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        q_scale[half] = shared_.q_scale[index_][q_.stage][lane_row() + 8 * half];
      }
    }
  }
  // Of the consumer's rows, the lane's first one; the other is the eighth below.
  __device__ int32_t lane_row() const {
    return thread_ / 32 * 16 + thread_ % 32 / 4;
  }

  // A lane has four neighbouring columns of each 16, of both rows; four lanes share a row.
  __device__ void round_q(uint32_t (&q)[kKeptSteps][4], float (&q_scale)[2]) {
    const int32_t t = thread_ % 4;
    uint2 v[kKeptSteps][4];
    uint32_t tops[2] = {};
#pragma unroll
    for (int step = 0; step < kKeptSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t chunk = 4 * step + i / 2 * 2 + t / 2;
        v[step][i] = load_shared_pair(
            q_address() + chunk_offset<S::kQGroupBytes>(lane_row() + i % 2 * 8, chunk) + t % 2 * 8);
        tops[i % 2] = larger_magnitudes(tops[i % 2], v[step][i].x);
        tops[i % 2] = larger_magnitudes(tops[i % 2], v[step][i].y);
      }
    }
    barrier_arrive(shared_address(&shared_.q_empty[index_]));
    RowRounding rounding[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t top = max(tops[half] >> 16, tops[half] & 0xffffu);
      top = max(top, __shfl_xor_sync(kAllLanes, top, 1));
      top = max(top, __shfl_xor_sync(kAllLanes, top, 2));
      rounding[half] = RowRounding::of(top);
      q_scale[half] = rounding[half].back;
    }
#pragma unroll
    for (int step = 0; step < kKeptSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) q[step][i] = rounding[i % 2](v[step][i].x, v[step][i].y);
    }
  }

  // s = q . K of the tile in the K ring.
  __device__ void begin_scores(float (&s)[kScores], const uint32_t (&kept)[kKeptSteps][4]) {
    // e4m3 lie where the first half of as many bf16 was.
    constexpr int kQGroupStep = (S::kFp8 ? 2 : 1) * S::kQGroupBytes;
    const uint64_t q = operand_by_rows(q_address());
    const uint64_t k = operand_by_rows(shared_address(shared_.k[k_cursor_.stage]));
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < S::kScoreSteps; ++step) {
      const uint64_t keys = advanced(k, step / 4 * S::kGroupBytes + step % 4 * 32);
      const uint64_t rows = advanced(q, step / 4 * kQGroupStep + step % 4 * 32);
      if constexpr (!S::kKeepsQ) {
        wgmma_shared<S::kFp8>(s, rows, keys, step > 0);
      } else if constexpr (S::kFp8) {
        wgmma_registers_e4m3(s, kept[step], keys, step > 0);
      } else {
        wgmma_registers<false, false>(s, kept[step], keys, step > 0);
      }
    }
    wgmma_commit();
  }

  // out += weights . V of the tile in the V ring.
  __device__ void begin_sums(float (&out)[S::kSumParts][kSums],
                             const uint32_t (&weights)[kWeightSteps][4]) {
    const uint32_t columns = S::first_column(index_) / 64 * S::kGroupBytes;
    const uint64_t v =
        operand_by_columns(shared_address(shared_.v[v_cursor_.stage]) + columns, S::kGroupBytes);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kWeightSteps; ++step) {
#pragma unroll
      for (int part = 0; part < S::kSumParts; ++part) {
        wgmma_registers<S::kFp8, true>(out[part], weights[step],
                                       advanced(v, part * 2 * S::kGroupBytes + step * 2048), true);
      }
    }
    wgmma_commit();
  }

  // Puts zeros behind TileWork::end() in the page that has it, where that is in tile i of keys, the
  // last one. Both consumers write the same ones.
  __device__ void clear_tail(const TileWork& tile, int32_t i, uint32_t values) {
    const int32_t end = tile.end() - (tile.first_page + i * S::kPages) * kPageTokens;
    if (end >= S::kTokens || end % kPageTokens == 0) return;
    const int32_t row = end / kPageTokens * kPageTokens + thread_ / 8;
    if (token_of_row<S::kInRuns>(row) >= end) {
#pragma unroll
      for (int group = 0; group < S::kColumnGroups; ++group) {
        store_shared(values + group * S::kGroupBytes + row * 128 + thread_ % 8 * 16, uint4{});
      }
    }
    fence_async_proxy();
    group_barrier(kConsumerBarrier + index_);
  }

  // This warp has read the stage.
  template <int kStages>
  __device__ void release(Ring& ring, RingCursor<kStages>& cursor) {
    if (thread_ % 32 == 0) barrier_arrive(shared_address(&ring.empty[cursor.stage]));
    cursor.advance();
  }

  __device__ static void pack(uint32_t (&weights)[kWeightSteps][4], const float (&s)[kScores]) {
#pragma unroll
    for (int step = 0; step < kWeightSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float low = s[8 * step + 2 * i];
        const float high = s[8 * step + 2 * i + 1];
        if constexpr (kGated) {
          weights[step][i] = Weights::pack(low, high);
        } else {
          weights[step][i] = S::kFp8 ? pack_half(low, high) : pack_bf16(low, high);
        }
      }
    }
  }

  __device__ void finish_tile(const TileWork& tile, const TilePart& part,
                              const float (&out)[S::kSumParts][kSums], const Weights& weigher) {
    bool has_results = true;
    // The vote tells the compiler that warps stay together.
    if (__any_sync(kAllLanes, part.count == 1)) {
      wait_for_room();
      write(tile, out, weigher);
    } else {
      has_results = finish_part(tile, part, out, weigher);
    }
    __syncwarp();
    if (thread_ == 0) shared_.has_results[index_][q_.stage] = has_results;
  }

  // Leaves what the tile's part gives. Are all parts there? Then their sum is what the carrier
  // gets.
  __device__ bool finish_part(const TileWork& tile, const TilePart& part,
                              const float (&out)[S::kSumParts][kSums],
                              const Weights& weigher) const {
    const TileParts<kHeadDim, kGated> parts(p_, part, index_, thread_);
    parts.leave(out, weigher);
    group_barrier(kConsumerBarrier + index_);
    if (thread_ == 0) shared_.is_last[index_] = parts.is_last();
    group_barrier(kConsumerBarrier + index_);
    wait_for_room();
    if (!__any_sync(kAllLanes, shared_.is_last[index_])) return false;
    SoftmaxRows rows;
    float over[2];
    if constexpr (!kGated) rows = parts.rows();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const RowEnd end = row_end(tile, half);
      over[half] =
          kGated ? weigher.over(half, end) : end.over(rows.max[half], row_sum(rows.sum[half]));
    }
    constexpr int kBatch = 4;
#pragma unroll 1
    for (int first = 0; first < kRowChunks; first += kBatch) {
      float4 sums[kBatch];
      parts.add_up(first, rows, sums);
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        write_pair(first + k, 0, pack_bf16(sums[k].x * over[0], sums[k].y * over[0]));
        write_pair(first + k, 1, pack_bf16(sums[k].z * over[1], sums[k].w * over[1]));
      }
    }
    return true;
  }

  // Until results may be written: what was there is out, or is q that has been read.
  __device__ void wait_for_room() const {
    if constexpr (S::kKeepsQ) {
      barrier_wait(shared_address(&shared_.out_empty[index_]), q_.phase ^ 1);
    } else if constexpr (S::kWide) {
      asm volatile("bar.sync %0, 256;" ::"r"(kRowsBarrier) : "memory");
    } else {
      group_barrier(kConsumerBarrier + index_);
    }
  }
  // For the carrier.
  __device__ void write(const TileWork& tile, const float (&out)[S::kSumParts][kSums],
                        const Weights& weigher) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float over = weigher.over(half, row_end(tile, half));
#pragma unroll
      for (int c = 0; c < kRowChunks; ++c) {
        const float(&sums)[kSums] = out[c / 16];
        const int e = c % 16 * 4 + 2 * half;
        write_pair(c, half, pack_bf16(sums[e] * over, sums[e + 1] * over));
      }
    }
  }
  // Of the lane's row `half`.
  __device__ const RowEnd& row_end(const TileWork& tile, int half) const {
    const int32_t row = tile.row_begin + S::first_row(index_) + lane_row() + 8 * half;
    return tile.ends[tile.rows.head(row, 0)];
  }
  // The lane's two columns of a chunk of 8.
  __device__ void write_pair(int chunk, int half, uint32_t two) const {
    const int32_t at = chunk_offset<S::kQGroupBytes>(lane_row() + 8 * half, chunk);
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(out_address() + at + thread_ % 4 * 4), "r"(two)
                 : "memory");
  }

  const AttentionParams& p_;
  Shared& shared_;
  const int32_t index_;
  const int32_t thread_;
  RingCursor<S::kQStages> q_;
  RingCursor<S::kStages> k_cursor_;
  RingCursor<S::kStages> v_cursor_;
};

template <int kHeadDim, KvType kType, Weighting kWeighting, bool kTrees, bool kCuts>
__global__ void __launch_bounds__(Shape<kHeadDim, kType, kWeighting, kTrees>::kThreads, 1)
    wgmma_kernel(const __grid_constant__ AttentionParams p) {
  using S = Shape<kHeadDim, kType, kWeighting, kTrees>;
  extern __shared__ __align__(1024) uint8_t raw[];
  auto& shared = *reinterpret_cast<WgmmaShared<kHeadDim, kType, kWeighting, kTrees>*>(raw);
  if (threadIdx.x == 0) {
    prefetch_map(S::kInRuns ? p.kv.runs : p.kv.box);
    shared.init_barriers();
  }
  if constexpr (S::kGated) prefetch_gate(p);
  __syncthreads();
  dependency_wait();
  dependency_trigger();
  WorkspaceView work;
  view_workspace(p.workspace, &work);
  const auto warp = static_cast<int32_t>(threadIdx.x) / 32;
  if (warp < 4) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::kFeederRegisters));
    if (warp == 0) Copier<kHeadDim, kType, kWeighting, kTrees>(p, shared).run();
    if (warp == 1) Taker<kHeadDim, kType, kWeighting, kTrees, kCuts>(p, shared, work).run();
    if (warp >= 2) Carrier<kHeadDim, kType, kWeighting, kTrees, kCuts>(p, shared, warp - 2).run();
  } else if (warp < 4 * (1 + S::kConverters)) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::kFeederRegisters));
    if constexpr (S::kFp8) Converter<kHeadDim, kType, kWeighting, kTrees>(shared).run();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::kConsumerRegisters));
    Consumer<kHeadDim, kType, kWeighting, kTrees, kCuts>(p, shared).run();
  }
}

template <int kHeadDim, KvType kType, Weighting kWeighting>
struct Launch {
  static cudaError_t run(const AttentionParams& params, cudaStream_t stream) {
    if constexpr (kWeighting == Weighting::kSoftmax) {
      // Elsewhere trees are split; a gate has none.
      const bool may_have_trees = params.ancestors != nullptr && params.config.whole_sequences;
      if (may_have_trees) return launch<true, false>(params, stream);
    }
    return cuts_tiles(params.config, params.bounds) ? launch<false, true>(params, stream)
                                                    : launch<false, false>(params, stream);
  }

  template <bool kTrees, bool kCuts>
  static cudaError_t launch(const AttentionParams& params, cudaStream_t stream) {
    using S = Shape<kHeadDim, kType, kWeighting, kTrees>;
    constexpr size_t kShared = sizeof(WgmmaShared<kHeadDim, kType, kWeighting, kTrees>);
    static_assert(kShared <= 227 * 1024);
    const auto kernel = wgmma_kernel<kHeadDim, kType, kWeighting, kTrees, kCuts>;
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
    if (error != cudaSuccess) return error;
    // Tiles that are cut have all multiprocessors, few as they are.
    const int32_t most = params.config.num_sms;
    const int32_t items = kCuts ? most : tile_items_bound(params);
    const int32_t blocks = items < most ? items : most;
    return launch_pdl(kernel, dim3(static_cast<unsigned>(blocks)), dim3(S::kThreads), kShared,
                      stream, params);
  }
};

}  // namespace

cudaError_t launch_attention_wgmma(const AttentionParams& params, cudaStream_t stream) {
  return is_wide(params.config.head_dim) ? launch_of_wide_config<Launch>(params, stream)
                                         : launch_of_config<Launch>(params, stream);
}

}  // namespace rudder::cuda
