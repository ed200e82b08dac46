// What the consumers of the wgmma kernel work on, and the warps that bring it: a copier (tiles of
// rows from the work list, pages through the copy engine), of fp8 a warpgroup that makes f16 of
// pages, and for each consumer a carrier (q to shared memory, results from there). Included by
// attention_wgmma.cu only.
#pragma once

#include "rudder/cuda/kernels/attention_device.cuh"
#include "rudder/cuda/kernels/attention_work.cuh"
#include "rudder/cuda/kernels/tree_path.cuh"

namespace rudder::cuda {

inline constexpr int kGroupThreads = 128;
inline constexpr int kConsumers = 2;
inline constexpr int kConsumerRows = 64;
static_assert(kConsumers * kConsumerRows == tile_rows(PrefillKernel::kWgmma));

// kUsualGate: is_usual(gate).
enum class Weighting { kSoftmax, kUsualGate, kAnyGate };

template <int kHeadDim, KvType kType, Weighting kWeighting, bool kTrees>
struct Shape {
  static constexpr bool kFp8 = kType == KvType::kFp8E4m3;
  static constexpr bool kInRuns = kWeighting != Weighting::kSoftmax;  // token_of_row
  static constexpr int kColumnGroups = (kHeadDim + 63) / 64;          // of bf16
  static constexpr int kTokens = kHeadDim == 256 ? 64 : 128;          // of a tile
  static constexpr int kPages = kTokens / kPageTokens;
  static constexpr int kGroupBytes = kTokens * 128;  // a column group of a tile
  static constexpr int kTileBytes = kColumnGroups * kGroupBytes;
  static constexpr int kStages = kHeadDim == 64 && !kFp8 ? 3 : 2;
  static constexpr int kQGroupBytes = kConsumerRows * 128;
  static constexpr int kQBytes = kColumnGroups * kQGroupBytes;  // of a consumer
  static constexpr int kQStages = kHeadDim == 256 ? 1 : 2;      // 2: the next tile's q is fetched
  // fp8 as it comes: column groups of 128 elements.
  static constexpr int kRawGroups = kFp8 ? (kHeadDim + 127) / 128 : 0;
  static constexpr int kRawStages = 2;
  static constexpr int kRawBytes = kRawGroups * kTokens * 128;
  // Sums of 64 rows and kSumColumns columns a wgmma.
  static constexpr int kSumColumns = kHeadDim == 64 ? 64 : 128;
  static constexpr int kSumParts = kHeadDim == 256 ? 2 : 1;
  // Warpgroups: copier and carriers, of fp8 the converter, the consumers.
  static constexpr int kConverters = kFp8 ? 1 : 0;
  static constexpr int kThreads = kGroupThreads * (1 + kConverters + kConsumers);
  // Registers of a thread after the split of 168 * 3 or 128 * 4.
  static constexpr int kFeederRegisters = 40;
  static constexpr int kConsumerRegisters = kFp8 ? 216 : 232;
};

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
  QueryRows rows;
  int32_t row_begin;
  int32_t kv_len;
  int32_t kv_head;
  int32_t first_page;
  int32_t num_pages;

  // The end of the sequence's copied tokens. Values beyond it are arbitrary, also NaN, and NaN
  // times a weight of zero is NaN.
  __device__ int32_t end() const { return min(kv_len, (first_page + num_pages) * kPageTokens); }
};
inline constexpr int kTileStages = 4;

template <int kHeadDim, KvType kType, Weighting kWeighting, bool kTrees>
struct WgmmaShared {
  using S = Shape<kHeadDim, kType, kWeighting, kTrees>;
  alignas(1024) uint8_t q[kConsumers][S::kQStages][S::kQBytes];  // results at the end of a tile
  alignas(1024) uint8_t k[S::kStages][S::kTileBytes];
  alignas(1024) uint8_t v[S::kStages][S::kTileBytes];
  alignas(1024) uint8_t raw[S::kFp8 ? S::kRawStages : 1][S::kFp8 ? S::kRawBytes : 16];
  TileWork tile[kTileStages];
  Ring tile_ring;
  Ring k_ring;
  Ring v_ring;
  Ring raw_ring;  // K and V in turn
  uint64_t q_full[kConsumers][S::kQStages];
  uint64_t out_full[kConsumers][S::kQStages];

  // By one thread, before all others go on.
  __device__ void init_barriers() {
    const int full = S::kFp8 ? 4 : 1;  // warps of the converter, or the copy engine
    for (int i = 0; i < S::kStages; ++i) {
      for (Ring* ring : {&k_ring, &v_ring}) {
        barrier_init(shared_address(&ring->full[i]), full);
        barrier_init(shared_address(&ring->empty[i]), kConsumers * 4);
      }
    }
    for (int i = 0; i < S::kRawStages; ++i) {
      barrier_init(shared_address(&raw_ring.full[i]), 1);
      barrier_init(shared_address(&raw_ring.empty[i]), 4);
    }
    for (int i = 0; i < kTileStages; ++i) {
      barrier_init(shared_address(&tile_ring.full[i]), 1);
      barrier_init(shared_address(&tile_ring.empty[i]), kConsumers + (S::kFp8 ? 4 : 0));
    }
    for (int i = 0; i < kConsumers; ++i) {
      for (int stage = 0; stage < S::kQStages; ++stage) {
        barrier_init(shared_address(&q_full[i][stage]), 1);
        barrier_init(shared_address(&out_full[i][stage]), 4);
      }
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
// token 4t + 2i + e, so that a lane of a product has four neighbours.
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

// Takes tiles and fills the rings: a warp. Where the work list says so, blocks take them in turns,
// there and back: 0 .. n-1, then 2n-1 .. n. Else the block that is free first takes the next.
template <int kHeadDim, KvType kType, Weighting kWeighting, bool kTrees>
class Copier {
 public:
  using S = Shape<kHeadDim, kType, kWeighting, kTrees>;
  using Shared = WgmmaShared<kHeadDim, kType, kWeighting, kTrees>;

  __device__ Copier(const AttentionParams& params, Shared& shared, const WorkspaceView& work)
      : p_(params),
        shared_(shared),
        work_(work),
        lane_(static_cast<int32_t>(threadIdx.x) % 32),
        count_(work.header->num_tiles * params.config.num_kv_heads),
        in_turns_(work.header->in_turns != 0),
        item_(static_cast<int32_t>(blockIdx.x)) {}

  __device__ void run() {
    take();
    publish();
    while (next_.num_pages > 0) {
      now_ = next_;
      int32_t ids = next_ids_;
      publish();  // ahead, so that its q comes while this tile's pages do
      for (int32_t first = 0; first < now_.num_pages; first += S::kPages) {
        const int32_t ids_then = ids_of(now_, first + S::kPages);
        copy_tile(first, ids);
        ids = ids_then;
      }
    }
    leave();
  }

 private:
  struct Source {
    int32_t num_pages;
    int32_t first_page;
    int32_t kv_head;
    int32_t table_row;
    int32_t kv_len;
    TreePath path;
  };

  // Asks for the item after the one that is published next.
  __device__ void take() {
    const auto blocks = static_cast<int32_t>(gridDim.x);
    const auto block = static_cast<int32_t>(blockIdx.x);
    if (in_turns_) {
      ++round_;
      then_ = round_ * blocks + (round_ % 2 == 0 ? block : blocks - 1 - block);
    } else if (lane_ == 0) {
      then_ = blocks + atomicAdd(&work_.header->taken, 1);
    }
  }
  // The last block sets the counters back for the next launch.
  __device__ void leave() {
    if (in_turns_ || lane_ != 0) return;
    __threadfence();
    if (atomicAdd(&work_.header->left, 1) != static_cast<int32_t>(gridDim.x) - 1) return;
    work_.header->taken = 0;
    work_.header->left = 0;
  }

  __device__ void publish() {
    barrier_wait(shared_address(&shared_.tile_ring.empty[slot_.stage]), slot_.phase ^ 1);
    TileWork tile = {};
    next_.num_pages = 0;
    if (item_ < count_) {
      const AttentionConfig& config = p_.config;
      const HeadTile at = head_tile(*work_.header, item_, config.num_kv_heads);
      const TileItem listed = work_.tiles[at.tile];
      const TiledSeq seq = work_.tiled[listed.entry];
      const int32_t end = (listed.tile + 1) * kConsumers * kConsumerRows;
      tile.rows = QueryRows::of<kHeadDim>(config, seq.q_begin, seq.q_len, seq.kv_len, at.kv_head);
      tile.row_begin = end - kConsumers * kConsumerRows;
      tile.kv_len = seq.kv_len;
      tile.kv_head = at.kv_head;
      tile.first_page = first_page_of(config, tile.rows.position(tile.row_begin), S::kPages);
      tile.num_pages = tile.rows.position(end - 1) / kPageTokens + 1 - tile.first_page;
      next_ = {tile.num_pages, tile.first_page, at.kv_head, seq.table_row, seq.kv_len, {}};
      if constexpr (kTrees) next_.path = {seq.path, seq.path_base};
      next_ids_ = ids_of(next_, 0);
    }
    if (lane_ == 0) shared_.tile[slot_.stage] = tile;
    warp_arrive(shared_.tile_ring.full[slot_.stage]);
    slot_.advance();
    item_ = __shfl_sync(kAllLanes, then_, 0);
    if (item_ < count_) take();
  }

  __device__ const int32_t* pages_of(const Source& source) const {
    return p_.block_table + source.table_row * p_.max_blocks + source.first_page;
  }
  // The lane's block of the pages from `first` on.
  __device__ int32_t ids_of(const Source& source, int32_t first) const {
    if (lane_ >= S::kPages || first + lane_ >= source.num_pages) return 0;
    return pages_of(source)[first + lane_];
  }
  // The cache row of a page's K (or V) of the tile's head.
  __device__ int32_t cache_row(int32_t block, int32_t is_v) const {
    return ((block * 2 + is_v) * p_.config.num_kv_heads + now_.kv_head) * kPageTokens;
  }

  // The pages of a tile of keys: [first, first + whole) are the sequence's as they lie, up to
  // `count` in all; zeros come for others up to `filled`.
  struct PageRun {
    int32_t first;
    int32_t whole;
    int32_t count;
    int32_t filled;
  };

  __device__ void copy_tile(int32_t first, int32_t block) {
    const int32_t count = min(S::kPages, now_.num_pages - first);
    PageRun run = {first, count, count, count};
    if constexpr (kTrees) {
      const int32_t before = now_.path.base / kPageTokens - (now_.first_page + first);
      if (now_.path.tokens != 0) run.whole = max(0, min(before, count));
    }
    if constexpr (S::kFp8) {
      copy_raw(run, block, 0);
      copy_raw(run, block, 1);
    } else {
      copy(shared_.k_ring, cursor_, shared_.k[cursor_.stage], run, block, 0);
      run.filled = S::kPages;
      copy(shared_.v_ring, cursor_, shared_.v[cursor_.stage], run, block, 1);
      cursor_.advance();
    }
  }
  __device__ void copy_raw(const PageRun& run, int32_t block, int32_t is_v) {
    copy(shared_.raw_ring, raw_, shared_.raw[raw_.stage], run, block, is_v);
    raw_.advance();
  }

  template <int kStages>
  __device__ void copy(Ring& ring, const RingCursor<kStages>& cursor, uint8_t* stage,
                       const PageRun& run, int32_t block, int32_t is_v) const {
    constexpr int kGroups = S::kFp8 ? S::kRawGroups : S::kColumnGroups;
    constexpr int kColumns = S::kFp8 ? 128 : 64;
    const uint32_t full = shared_address(&ring.full[cursor.stage]);
    const uint32_t to = shared_address(stage);
    barrier_wait(shared_address(&ring.empty[cursor.stage]), cursor.phase ^ 1);
    if constexpr (kTrees) gather(run, to, is_v);
    const int32_t boxes = run.filled - (run.count - run.whole);
    if (lane_ == 0) {
      barrier_expect(full, static_cast<uint32_t>(boxes * kGroups * kPageTokens * 128));
    }
    __syncwarp();
    const bool is_whole = lane_ < run.whole;
    if (is_whole || (lane_ >= run.count && lane_ < run.filled)) {
      // Boxes outside the cache come as zeros.
      const int32_t row = is_whole ? cache_row(block, is_v) : -kPageTokens;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const uint32_t box = to + group * S::kTokens * 128 + lane_ * kPageTokens * 128;
        if constexpr (S::kInRuns) {
          copy_runs(box, &p_.kv, group * kColumns, row / kPageTokens, full);
        } else {
          copy_box(box, &p_.kv, group * kColumns, row, full);
        }
      }
    }
    __syncwarp();
  }

  // The rows of pages that are not whole, each from where its token lies; K, or with 1 V.
  __device__ void gather(const PageRun& run, uint32_t to, int32_t is_v) const {
    constexpr int kRowBytes = kHeadDim * (S::kFp8 ? 1 : 2);
    constexpr int kRowChunks = kRowBytes / 16;
    if (run.whole == run.count) return;
    const int32_t* const table = pages_of(now_) - now_.first_page;
    const int32_t begin = (now_.first_page + run.first) * kPageTokens;
    const int32_t end = min(run.count * kPageTokens, now_.kv_len - begin);
    const int32_t first = run.whole * kPageTokens;
#pragma unroll 1
    for (int32_t at = lane_; at < (end - first) * kRowChunks; at += 32) {
      const int32_t row = first + at / kRowChunks;
      const int32_t chunk = at % kRowChunks;
      const int32_t offset = now_.path.offset_of(begin + row);
      const int64_t from = cache_row(table[offset / kPageTokens], is_v) + offset % kPageTokens;
      store_shared(to + chunk / 8 * S::kTokens * 128 + row * 128 + (((chunk % 8) ^ (row % 8)) << 4),
                   *reinterpret_cast<const uint4*>(static_cast<const uint8_t*>(p_.kv_storage) +
                                                   from * kRowBytes + chunk * 16));
    }
    fence_async_proxy();
    __syncwarp();  // what is gathered is there before the warp says so
  }

  const AttentionParams& p_;
  Shared& shared_;
  const WorkspaceView& work_;
  const int32_t lane_;
  const int32_t count_;
  const bool in_turns_;
  int32_t round_ = 0;
  int32_t item_;      // that is published next
  int32_t then_ = 0;  // and the one after it, in lane 0
  Source now_ = {};
  Source next_ = {};
  int32_t next_ids_ = 0;
  RingCursor<kTileStages> slot_;
  RingCursor<S::kStages> cursor_;  // of K and V
  RingCursor<S::kRawStages> raw_;
};

// Makes f16 of e4m3: a warpgroup.
template <int kHeadDim, KvType kType, Weighting kWeighting, bool kTrees>
class Converter {
 public:
  using S = Shape<kHeadDim, kType, kWeighting, kTrees>;
  using Shared = WgmmaShared<kHeadDim, kType, kWeighting, kTrees>;

  __device__ explicit Converter(Shared& shared)
      : shared_(shared), thread_(static_cast<int32_t>(threadIdx.x) % kGroupThreads) {}

  __device__ void run() {
    RingCursor<kTileStages> slot;
    while (true) {
      barrier_wait(shared_address(&shared_.tile_ring.full[slot.stage]), slot.phase);
      const TileWork& tile = shared_.tile[slot.stage];
      const int32_t pages = tile.num_pages;
      int32_t tokens = tile.end() - tile.first_page * kPageTokens;
      warp_arrive(shared_.tile_ring.empty[slot.stage]);
      slot.advance();
      if (pages == 0) return;
      for (int32_t first = 0; first < pages; first += S::kPages, tokens -= S::kTokens) {
        convert(shared_.k_ring, shared_.k, S::kTokens);
        convert(shared_.v_ring, shared_.v, tokens);
        cursor_.advance();
      }
    }
  }

 private:
  // Tokens from `tokens` on become zeros.
  __device__ void convert(Ring& ring, uint8_t (&tiles)[S::kStages][S::kTileBytes], int32_t tokens) {
    const int32_t stage = cursor_.stage;
    barrier_wait(shared_address(&shared_.raw_ring.full[raw_.stage]), raw_.phase);
    barrier_wait(shared_address(&ring.empty[stage]), cursor_.phase ^ 1);
    // A thread has one chunk (16 raw bytes) of every kStep-th row, all at the same place in the
    // swizzle.
    constexpr int kChunks = kHeadDim / 16;  // of a row
    constexpr int kStep = kChunks == 6 ? 16 : kGroupThreads / kChunks;
    constexpr int kEach = S::kTokens / kStep;
    constexpr int kBatch = 4;
    static_assert(kStep % 8 == 0 && kEach % kBatch == 0);
    const int32_t row = thread_ / kChunks;
    const int32_t chunk = thread_ % kChunks;
    if (row < kStep) {
      // Of every other column group the second half goes first: no two lanes of a quarter of a warp
      // meet in a bank.
      const int32_t swapped = chunk / 4 % 2;
      const uint32_t read =
          shared_address(shared_.raw[raw_.stage]) + chunk_offset<S::kTokens * 128>(row, chunk);
      const uint32_t write =
          shared_address(tiles[stage]) + chunk_offset<S::kGroupBytes>(row, 2 * chunk + swapped);
#pragma unroll
      for (int begin = 0; begin < kEach; begin += kBatch) {
        uint4 raw[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) raw[i] = load_shared(read + (begin + i) * kStep * 128);
        if (tokens < S::kTokens) {
#pragma unroll
          for (int i = 0; i < kBatch; ++i) {
            const int32_t token = token_of_row<S::kInRuns>(row + (begin + i) * kStep);
            if (token >= tokens) raw[i] = uint4{};
          }
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          if (swapped != 0) raw[i] = uint4{raw[i].z, raw[i].w, raw[i].x, raw[i].y};
          store_wide(write + (begin + i) * kStep * 128, raw[i].x, raw[i].y);
          store_wide((write ^ 16) + (begin + i) * kStep * 128, raw[i].z, raw[i].w);
        }
      }
    }
    fence_async_proxy();
    warp_arrive(ring.full[stage]);
    warp_arrive(shared_.raw_ring.empty[raw_.stage]);
    raw_.advance();
  }

  __device__ static void store_wide(uint32_t to, uint32_t four, uint32_t next_four) {
    store_shared(to,
                 uint4{widen(four), widen(four >> 16), widen(next_four), widen(next_four >> 16)});
  }

  Shared& shared_;
  const int32_t thread_;
  RingCursor<S::kStages> cursor_;  // of K and V
  RingCursor<S::kRawStages> raw_;
};

// Brings the q of a consumer, tile after tile, and takes its results away: a warp. Both have the
// same memory: q of a tile comes when the results that lie there are out.
template <int kHeadDim, KvType kType, Weighting kWeighting, bool kTrees>
class Carrier {
 public:
  using S = Shape<kHeadDim, kType, kWeighting, kTrees>;
  using Shared = WgmmaShared<kHeadDim, kType, kWeighting, kTrees>;
  static constexpr int kRowChunks = kHeadDim / 8;  // 16-byte chunks of a row

  __device__ Carrier(const AttentionParams& params, Shared& shared, int32_t consumer)
      : p_(params),
        shared_(shared),
        consumer_(consumer),
        lane_(static_cast<int32_t>(threadIdx.x) % 32) {}

  __device__ void run() {
    int32_t out = 0;  // tiles whose results have not gone out
    while (true) {
      barrier_wait(shared_address(&shared_.tile_ring.full[slot_.stage]), slot_.phase);
      const TileWork& tile = shared_.tile[slot_.stage];
      const bool is_tile = tile.num_pages > 0;
      if (out == S::kQStages) {
        store_out();
        --out;
      }
      if (is_tile) fetch_q(tile);
      warp_arrive(shared_.q_full[consumer_][q_.stage]);
      if (!is_tile) break;
      slot_.advance();
      q_.advance();
      ++out;
    }
    for (; out > 0; --out) store_out();
  }

 private:
  // Calls chunk(address in shared memory, index of the chunk in q and out or -1 past the end) for
  // the lane's chunks of a tile.
  template <int kUnroll, typename Chunk>
  __device__ void for_chunks(const TileWork& tile, int32_t stage, const Chunk& chunk) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Each lane finds out where a row begins.
      const int32_t row = tile.row_begin + consumer_ * kConsumerRows + half * 32 + lane_;
      const auto begin = row < tile.rows.count
                             ? static_cast<int32_t>(tile.rows.template offset<kHeadDim>(row) / 8)
                             : -1;
#pragma unroll kUnroll
      for (int i = 0; i < kRowChunks; ++i) {
        const int32_t r = (i * 32 + lane_) / kRowChunks;
        const int32_t c = (i * 32 + lane_) % kRowChunks;
        const int32_t at = __shfl_sync(kAllLanes, begin, r);
        chunk(shared_address(shared_.q[consumer_][stage]) +
                  chunk_offset<S::kQGroupBytes>(half * 32 + r, c),
              at < 0 ? -1 : at + c);
      }
    }
  }

  // Rows past the end become zeros.
  __device__ void fetch_q(const TileWork& tile) const {
    for_chunks<2>(tile, q_.stage, [&](uint32_t to, int32_t at) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
                   "l"(static_cast<const uint4*>(p_.q) + max(at, 0)), "r"(at < 0 ? 0 : 16)
                   : "memory");
    });
    asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
    if constexpr (S::kFp8) {
      for_chunks<2>(tile, q_.stage, [&](uint32_t to, int32_t) {
        const uint4 v = load_shared(to);
        store_shared(
            to, uint4{half_of_bf16(v.x), half_of_bf16(v.y), half_of_bf16(v.z), half_of_bf16(v.w)});
      });
    }
    fence_async_proxy();
  }

  // Of the oldest tile whose results have not gone out.
  __device__ void store_out() {
    barrier_wait(shared_address(&shared_.out_full[consumer_][out_.stage]), out_.phase);
    for_chunks<2>(shared_.tile[out_slot_.stage], out_.stage, [&](uint32_t from, int32_t at) {
      const uint4 v = load_shared(from);
      if (at >= 0) static_cast<uint4*>(p_.out)[at] = v;
    });
    warp_arrive(shared_.tile_ring.empty[out_slot_.stage]);
    out_.advance();
    out_slot_.advance();
  }

  const AttentionParams& p_;
  Shared& shared_;
  const int32_t consumer_;
  const int32_t lane_;
  RingCursor<kTileStages> slot_;
  RingCursor<S::kQStages> q_;
  RingCursor<kTileStages> out_slot_;
  RingCursor<S::kQStages> out_;
};

}  // namespace rudder::cuda
