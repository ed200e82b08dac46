// What the warps of the wgmma kernel share: tiles of rows, rings of pages, q and results, and the
// barriers of each. Included by attention_wgmma*.cu* only.
#pragma once

#include "rudder/cuda/kernels/attention/attention_device.cuh"
#include "rudder/cuda/kernels/attention/attention_work.cuh"
#include "rudder/cuda/kernels/tree_path.cuh"

namespace rudder::cuda {

inline constexpr int kGroupThreads = 128;
inline constexpr int kConsumers = 2;
inline constexpr int kConsumerRows = 64;

template <int kHeadDim, KvType kType, Weighting kWeighting, bool kTrees>
struct Shape {
  static constexpr bool kFp8 = kType == KvType::kFp8E4m3;
  static constexpr bool kGated = kWeighting != Weighting::kSoftmax;
  // Of wide heads the consumers have the same rows, each with half of the columns of the results.
  static constexpr bool kWide = is_wide(kHeadDim);
  static_assert(!(kWide && kGated));
  static constexpr int kTileRows = kWide ? kConsumerRows : kConsumers * kConsumerRows;
  static_assert(kTileRows == tile_rows(PrefillKernel::kWgmma, kHeadDim));
  static constexpr int kOutColumns = kWide ? kHeadDim / kConsumers : kHeadDim;  // of a consumer
  static constexpr int kColumnGroups = (kHeadDim + 63) / 64;                    // of bf16
  static constexpr int kTokens = kWide ? 32 : kHeadDim == 256 ? 64 : 128;       // of a tile
  // Does the copy engine order the rows of a page, so that under a gate a lane has neighbouring
  // tokens (token_of_row)?
  static constexpr bool kInRuns = kGated;
  static constexpr int kPages = kTokens / kPageTokens;
  static_assert(kPages <= 8 && kPages == step_pages(kHeadDim));
  // A column group of a tile: 64 columns of bf16 or f16, 128 of e4m3.
  static constexpr int kGroupBytes = kTokens * 128;
  static constexpr int kTileBytes = kColumnGroups * kGroupBytes;
  // Column groups of a page as the cache has it, and of a tile of keys, which is never widened.
  static constexpr int kCacheGroups = kFp8 ? (kHeadDim + 127) / 128 : kColumnGroups;
  static constexpr int kKeyBytes = kCacheGroups * kGroupBytes;
  static constexpr int kStages = kHeadDim == 64 && !kFp8 ? 3 : 2;
  static constexpr int kQGroupBytes = kConsumerRows * 128;
  // Of a consumer: its rows of q, or its columns of the rows that both have.
  static constexpr int kQBytes = (kOutColumns + 63) / 64 * kQGroupBytes;
  // Columns of q in 32 bytes, which a product takes at once.
  static constexpr int kScoreStep = kFp8 ? 32 : 16;
  static constexpr int kScoreSteps = kHeadDim / kScoreStep;
  // Does a consumer keep q in registers, where it has some left? Then the products read a third
  // less of shared memory for scores (docs/adr/0008-attention-kernels.md).
  static constexpr bool kKeepsQ = kHeadDim <= 128;
  // Do the consumers issue their products in turns? As measured
  // (docs/adr/0008-attention-kernels.md).
  static constexpr bool kTakesTurns = !kFp8 && kHeadDim <= 128;
  // Of q and results of a consumer. Where it keeps q, one has q and the other results; else
  // results go to where q was, and with two the next tile's q is fetched.
  static constexpr int kQBuffers = kHeadDim >= 256 ? 1 : 2;
  static constexpr int kOutBuffer = 1;                      // where it keeps q
  static constexpr int kQStages = kKeepsQ ? 1 : kQBuffers;  // tiles whose q or results are there
  static constexpr int kRawStages = 2;                      // of fp8 values as they come
  // Sums of 64 rows and kSumColumns columns a wgmma.
  static constexpr int kSumColumns = kHeadDim == 64 ? 64 : 128;
  static constexpr int kSumParts = kOutColumns == 256 ? 2 : 1;
  // Warpgroups: copier and carriers, of fp8 the converter, the consumers.
  static constexpr int kConverters = kFp8 ? 1 : 0;
  static constexpr int kThreads = kGroupThreads * (1 + kConverters + kConsumers);
  // Registers of a thread after the split of 168 * 3 or 128 * 4.
  static constexpr int kFeederRegisters = 40;
  static constexpr int kConsumerRegisters = kFp8 ? 216 : 232;

  // Of a consumer in a tile.
  __device__ static constexpr int first_row(int consumer) {
    return kWide ? 0 : consumer * kConsumerRows;
  }
  __device__ static constexpr int first_column(int consumer) {
    return kWide ? consumer * kOutColumns : 0;
  }
};

// Named barriers of the block.
inline constexpr int kConsumerBarrier = 1;  // + consumer
inline constexpr int kTurnBarrier = 3;      // + consumer
inline constexpr int kRowsBarrier = 5;      // of consumers that have the same rows
inline constexpr int kCarrierBarrier = 6;   // of their carriers

struct Ring {  // barriers of a ring of stages
  static constexpr int kMaxStages = 4;
  uint64_t full[kMaxStages];
  uint64_t empty[kMaxStages];
};

// Where a ring is read or written next.
template <int kStages>
struct RingCursor {
  int32_t stage = 0;
  uint32_t phase = 0;

  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// One tile of rows and the pages [first_page, first_page + num_pages) that they see. Without pages:
// there are no more tiles.
struct TileWork {
  static constexpr int kMostPages = 8;  // of a tile of keys
  QueryRows rows;
  int32_t row_begin;
  int32_t kv_len;
  int32_t kv_head;
  int32_t first_page;
  int32_t num_pages;
  const int32_t* table;        // blocks of the sequence
  int32_t blocks[kMostPages];  // of the first tile of keys
  TreePath path;
  float k_scale;
  bool has_gain;  // does the filter of some head add to scores?
  // Of the KV head's q heads.
  float sigma[kMaxGroup];  // of a gate
  RowEnd ends[kMaxGroup];  // of a gate with the scale of values times gamma

  // The end of the sequence's copied tokens. Values beyond it are arbitrary, also NaN, and NaN
  // times a weight of zero is NaN.
  __device__ int32_t end() const { return min(kv_len, (first_page + num_pages) * kPageTokens); }
};
// Where tiles may be cut: what part of one it is, its slot in partial_out, that of the first part
// and the distance to the next one's.
struct TilePart {
  int32_t count;  // of parts. 1: the tile is whole
  int32_t slot;
  int32_t first_slot;
  int32_t slot_step;
  bool has_lead;  // the first page is there for the filter of a gate alone
};
// One that is computed, the next one, and one whose results are going out while that after it is
// taken: with more a block would keep tiles from others.
inline constexpr int kTileStages = 3;

template <int kHeadDim, KvType kType, Weighting kWeighting, bool kTrees>
struct WgmmaShared {
  using S = Shape<kHeadDim, kType, kWeighting, kTrees>;
  alignas(1024) uint8_t q[kConsumers][S::kQBuffers][S::kQBytes];
  alignas(1024) uint8_t k[S::kStages][S::kKeyBytes];
  alignas(1024) uint8_t v[S::kStages][S::kTileBytes];
  alignas(1024) uint8_t raw[S::kFp8 ? S::kRawStages : 1][S::kFp8 ? S::kKeyBytes : 16];
  // Of rows of q that the carriers round: RowRounding::back, and of wide heads the largest
  // magnitude in each carrier's columns, as bf16.
  float q_scale[kConsumers][S::kQStages][S::kFp8 && !S::kKeepsQ ? kConsumerRows : 1];
  uint32_t q_top[kConsumers][S::kFp8 && S::kWide ? kConsumerRows : 1];
  TileWork tile[kTileStages];
  TilePart part[kTileStages];
  Ring tile_ring;
  Ring k_ring;
  Ring v_ring;
  Ring raw_ring;  // V of fp8
  uint64_t q_full[kConsumers][S::kQStages];
  uint64_t out_full[kConsumers][S::kQStages];
  // Where consumers keep q.
  uint64_t q_empty[kConsumers];
  uint64_t out_empty[kConsumers];
  // Where tiles may be cut.
  bool is_last[kConsumers];                   // are all parts of the tile there?
  bool has_results[kConsumers][S::kQStages];  // else another block has those of the tile

  // By one thread, before all others go on.
  __device__ void init_barriers() {
    for (int i = 0; i < S::kStages; ++i) {
      barrier_init(shared_address(&k_ring.full[i]), 1);
      barrier_init(shared_address(&v_ring.full[i]), S::kFp8 ? 4 : 1);  // the converter's warps
      for (Ring* ring : {&k_ring, &v_ring}) {
        barrier_init(shared_address(&ring->empty[i]), kConsumers * 4);
      }
    }
    for (int i = 0; i < S::kRawStages; ++i) {
      barrier_init(shared_address(&raw_ring.full[i]), 1);
      barrier_init(shared_address(&raw_ring.empty[i]), 4);
    }
    // What these order, once a tile of rows, are loads and stores of lanes. So each lane arrives
    // for itself: that one arrives for all behind __syncwarp() is an order too, but one that a
    // race checker does not see.
    for (int i = 0; i < kTileStages; ++i) {
      barrier_init(shared_address(&tile_ring.full[i]), 32);                // the taker
      barrier_init(shared_address(&tile_ring.empty[i]), kConsumers * 32);  // the carriers
    }
    for (int i = 0; i < kConsumers; ++i) {
      for (int stage = 0; stage < S::kQStages; ++stage) {
        barrier_init(shared_address(&q_full[i][stage]), 32);  // the carrier
        barrier_init(shared_address(&out_full[i][stage]), kGroupThreads);
      }
      barrier_init(shared_address(&q_empty[i]), kGroupThreads);
      barrier_init(shared_address(&out_empty[i]), 32);  // the carrier
    }
    barrier_init_fence();
  }
};

// By a warp, whose lanes have all done what the barrier waits for.
__device__ inline void warp_arrive(uint64_t& barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&barrier));
}

// The token of a page (or of several) that lies in row `row` of it. In runs row 8i + 2t + e has
// token 4t + 2i + e, so that lane t of a product has four neighbours.
template <bool kInRuns>
__device__ inline int32_t token_of_row(int32_t row) {
  if constexpr (!kInRuns) return row;
  return (row & ~15) | (row & 6) << 1 | (row & 8) >> 2 | (row & 1);
}

// Where 16-byte chunk c of row r of q (and of out, at the end) lies in a consumer's part.
template <int kGroupBytes>
__device__ inline int32_t chunk_offset(int32_t r, int32_t c) {
  return c / 8 * kGroupBytes + r * 128 + (((c % 8) ^ (r % 8)) << 4);
}

}  // namespace rudder::cuda
