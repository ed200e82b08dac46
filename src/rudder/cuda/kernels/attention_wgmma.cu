// Tiled attention with wgmma (the structure of FlashAttention-3, Shah et al. 2024): a persistent
// block of three warpgroups. One is the producer: it keeps rings of K and V tiles full, page after
// page through the copy engine, and turns fp8 into f16 on the way (q and the weights are f16 then).
// Two are consumers, each with 64 rows (pairs of token and q head) of the same KV head: S = q . K
// from shared memory, the weights stay in registers as the A operand of weights . V, and the
// weights of a tile are made while the tensor cores do the tile before it.
//
// A block takes tiles in the order of the work list (longest first in each section), there and
// back: 0 .. n-1, then 2n-1 .. n, so that blocks get about the same work.
//
// A token of a tree comes as a sequence of one new token, whose last keys lie apart: the producer
// brings those row by row to where a page would have them. So its row has the bits of plain
// decoding. It reads the cache once a token, as decodes do in this kernel.
#include <type_traits>

#include "rudder/cuda/kernels/attention_device.cuh"
#include "rudder/cuda/kernels/attention_weights.cuh"
#include "rudder/cuda/kernels/attention_wgmma.cuh"
#include "rudder/cuda/kernels/attention_work.cuh"
#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/tree_path.cuh"

namespace rudder::cuda {
namespace {

constexpr int kGroupThreads = 128;
constexpr int kConsumers = 2;
constexpr int kThreads = kGroupThreads * (1 + kConsumers);
constexpr int kConsumerRows = 64;
static_assert(kConsumers * kConsumerRows == tile_rows(PrefillKernel::kWgmma));

// By how much a row's base-2 exponents may pass the maximum that they are taken relative to:
// weights stay below 256, which f16 and bf16 hold as precisely as 1.
constexpr float kMaxLag = 8;

// Named barriers of the block.
constexpr int kConsumerBarrier = 1;  // + consumer
constexpr int kProducerBarrier = 3;
constexpr int kTurnBarrier = 4;  // + consumer

template <int kHeadDim, KvType kType, bool kTrees>
struct Shape {
  static constexpr bool kFp8 = kType == KvType::kFp8E4m3;
  static constexpr int kColumnGroups = (kHeadDim + 63) / 64;  // of bf16
  static constexpr int kTokens = kHeadDim == 256 ? 64 : 128;  // of a tile
  static constexpr int kPages = kTokens / kPageTokens;
  static constexpr int kGroupBytes = kTokens * 128;  // a column group of a tile
  static constexpr int kTileBytes = kColumnGroups * kGroupBytes;
  static constexpr int kStages = kHeadDim == 64 && !kFp8 ? 3 : 2;
  static constexpr int kQGroupBytes = kConsumerRows * 128;
  static constexpr int kQStages = kHeadDim == 256 ? 1 : 2;      // 2: the next tile's q is fetched
  static constexpr int kQBytes = kColumnGroups * kQGroupBytes;  // of a consumer
  // fp8 as it comes: column groups of 128 elements.
  static constexpr int kRawGroups = kFp8 ? (kHeadDim + 127) / 128 : 0;
  static constexpr int kRawStages = 2;
  static constexpr int kRawBytes = kRawGroups * kTokens * 128;
  // Sums of 64 rows and kSumColumns columns a wgmma.
  static constexpr int kSumColumns = kHeadDim == 64 ? 64 : 128;
  static constexpr int kSumParts = kHeadDim == 256 ? 2 : 1;
  static constexpr int kFullArrivals = kFp8 ? kGroupThreads : 1;
  // Registers of a thread after the split of 168 * 3.
  static constexpr int kProducerRegisters = kFp8 ? 56 : kTrees ? 40 : 24;
  static constexpr int kConsumerRegisters = kFp8 ? 224 : kTrees ? 232 : 240;
};

struct Ring {  // barriers of a ring of stages
  static constexpr int kMaxStages = 3;
  uint64_t full[kMaxStages];
  uint64_t empty[kMaxStages];
};

// One tile of rows and the pages [first_page, first_page + num_pages) that they see.
struct TileWork {
  QueryRows rows;
  int32_t row_begin;
  int32_t kv_len;
  int32_t kv_head;
  int32_t table_row;
  int32_t first_page;
  int32_t num_pages;

  // The end of the sequence's copied tokens. Values beyond it are arbitrary, also NaN, and NaN
  // times a weight of zero is NaN.
  __device__ int32_t end() const { return min(kv_len, (first_page + num_pages) * kPageTokens); }
};

template <int kHeadDim, KvType kType, bool kTrees>
struct WgmmaShared {
  using S = Shape<kHeadDim, kType, kTrees>;
  alignas(1024) uint8_t q[kConsumers][S::kQStages][S::kQBytes];
  alignas(1024) uint8_t k[S::kStages][S::kTileBytes];
  alignas(1024) uint8_t v[S::kStages][S::kTileBytes];
  alignas(1024) uint8_t raw[S::kFp8 ? S::kRawStages : 1][S::kFp8 ? S::kRawBytes : 16];
  TileWork tile[kConsumers][2];
  Ring k_ring;
  Ring v_ring;
  uint64_t raw_full[S::kRawStages];
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

__device__ void group_barrier(int id) {
  asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory");
}

// An item as the work list has it.
struct ListedTile {
  TileItem tile;
  TiledSeq seq;
  int32_t kv_head;
};

__device__ ListedTile listed_tile(const WorkspaceView& work, int32_t item, int32_t kv_heads) {
  const HeadTile at = head_tile(*work.header, item, kv_heads);
  ListedTile listed;
  listed.tile = work.tiles[at.tile];
  listed.seq = work.tiled[listed.tile.entry];
  listed.kv_head = at.kv_head;
  return listed;
}

template <int kHeadDim, int kPages>
__device__ TileWork tile_work(const AttentionParams& p, const ListedTile& listed) {
  const TiledSeq& seq = listed.seq;
  TileWork t;
  t.kv_head = listed.kv_head;
  t.rows = QueryRows::of<kHeadDim>(p.config, seq.q_begin, seq.q_len, seq.kv_len, t.kv_head);
  t.row_begin = listed.tile.tile * kConsumers * kConsumerRows;
  t.kv_len = seq.kv_len;
  t.table_row = seq.table_row;
  t.first_page = first_page_of(p.config, t.rows.position(t.row_begin), kPages);
  t.num_pages = t.rows.position(t.row_begin + kConsumers * kConsumerRows - 1) / kPageTokens + 1 -
                t.first_page;
  return t;
}

// The block's items one after the other; false when there are no more.
struct ItemWalk {
  int32_t count;
  int32_t round = 0;

  __device__ bool next(int32_t& item) {
    const auto blocks = static_cast<int32_t>(gridDim.x);
    const auto block = static_cast<int32_t>(blockIdx.x);
    while (round * blocks < count) {
      item = round * blocks + (round % 2 == 0 ? block : blocks - 1 - block);
      ++round;
      if (item < count) return true;
    }
    return false;
  }
};

// --- producer ---

// Of bf16: one warp, a lane a page.
template <int kHeadDim, KvType kType, bool kTrees>
class Producer {
 public:
  using S = Shape<kHeadDim, kType, kTrees>;
  using Shared = WgmmaShared<kHeadDim, kType, kTrees>;

  __device__ Producer(const AttentionParams& params, Shared& shared)
      : p_(params), shared_(shared), thread_(static_cast<int32_t>(threadIdx.x)) {}

  __device__ void run(const WorkspaceView& work, ItemWalk walk) {
    int32_t item;
    while (walk.next(item)) {
      const ListedTile listed = listed_tile(work, item, p_.config.num_kv_heads);
      tile_ = tile_work<kHeadDim, S::kPages>(p_, listed);
      if constexpr (kTrees) path_ = {listed.seq.path, listed.seq.path_base};
      pages_ = p_.block_table + tile_.table_row * p_.max_blocks + tile_.first_page;
      const int32_t tiles = ceil_div(tile_.num_pages, S::kPages);
      if constexpr (S::kFp8) {
        convert_tiles(tiles);
      } else {
        copy_tiles(tiles);
      }
    }
  }

 private:
  // The cache row of a page's K (or V) of the tile's head.
  __device__ int32_t cache_row(int32_t block, int32_t is_v) const {
    return ((block * 2 + is_v) * p_.config.num_kv_heads + tile_.kv_head) * kPageTokens;
  }

  // The pages of a tile: [first, first + whole) are the sequence's as they lie, up to count in all.
  struct PageRun {
    int32_t first;
    int32_t whole;
    int32_t count;
  };
  __device__ PageRun pages_from(int32_t first) const {
    const int32_t count = min(S::kPages, tile_.num_pages - first);
    if constexpr (!kTrees) return {first, count, count};
    const int32_t before = path_.base / kPageTokens - (tile_.first_page + first);
    return {first, path_.tokens == 0 ? count : max(0, min(before, count)), count};
  }

  // By a warp: the rows of the tile's other pages, each from where its token lies; K, or with 1 V.
  __device__ void gather(const PageRun& pages, uint32_t tile, int32_t group_bytes,
                         int32_t is_v) const {
    constexpr int kRowBytes = kHeadDim * (S::kFp8 ? 1 : 2);
    constexpr int kRowChunks = kRowBytes / 16;
    if (pages.whole == pages.count) return;
    const int32_t* const table = pages_ - tile_.first_page;
    const int32_t begin = (tile_.first_page + pages.first) * kPageTokens;
    const int32_t end = min(pages.count * kPageTokens, tile_.kv_len - begin);
    const int32_t first = pages.whole * kPageTokens;
#pragma unroll 1
    for (int32_t at = thread_; at < (end - first) * kRowChunks; at += 32) {
      const int32_t row = first + at / kRowChunks;
      const int32_t chunk = at % kRowChunks;
      const int32_t offset = path_.offset_of(begin + row);
      const int64_t from = cache_row(table[offset / kPageTokens], is_v) + offset % kPageTokens;
      store_shared(tile + chunk / 8 * group_bytes + row * 128 + (((chunk % 8) ^ (row % 8)) << 4),
                   *reinterpret_cast<const uint4*>(static_cast<const uint8_t*>(p_.kv_storage) +
                                                   from * kRowBytes + chunk * 16));
    }
    fence_async_proxy();
  }

  __device__ void copy_tiles(int32_t tiles) {
    for (int32_t i = 0; i < tiles; ++i) {
      const PageRun pages = pages_from(i * S::kPages);
      const int32_t block = thread_ < pages.whole ? pages_[pages.first + thread_] : 0;
      copy_one(shared_.k_ring, shared_.k, pages, block, 0);
      copy_one(shared_.v_ring, shared_.v, pages, block, 1);
      cursor_.advance();
    }
  }

  __device__ void copy_one(Ring& ring, uint8_t (&tiles)[S::kStages][S::kTileBytes],
                           const PageRun& pages, int32_t block, int32_t is_v) {
    const int32_t stage = cursor_.stage;
    const int32_t row = cache_row(block, is_v);
    const uint32_t full = shared_address(&ring.full[stage]);
    barrier_wait(shared_address(&ring.empty[stage]), cursor_.phase ^ 1);
    if constexpr (kTrees) {
      gather(pages, shared_address(tiles[stage]), S::kGroupBytes, is_v);
      __syncwarp();  // what is gathered is there before the warp says so
    }
    if (thread_ == 0) {
      barrier_expect(full,
                     static_cast<uint32_t>(pages.whole * S::kColumnGroups * kPageTokens * 128));
    }
    __syncwarp();
    if (thread_ >= pages.whole) return;
    const uint32_t to = shared_address(tiles[stage]) + thread_ * kPageTokens * 128;
#pragma unroll
    for (int group = 0; group < S::kColumnGroups; ++group) {
      copy_box(to + group * S::kGroupBytes, &p_.kv, group * 64, row, full);
    }
  }

  // fp8: K and V tiles in turn come raw, two ahead, and are widened by the whole warpgroup.
  __device__ void convert_tiles(int32_t tiles) {
    send_raw(0);
    send_raw(1);
    for (int32_t i = 0; i < tiles; ++i) {
      convert_one(shared_.k_ring, shared_.k, S::kTokens);
      send_raw(2 * i + 2);
      const int32_t begin = (tile_.first_page + i * S::kPages) * kPageTokens;
      convert_one(shared_.v_ring, shared_.v, tile_.end() - begin);
      send_raw(2 * i + 3);
      cursor_.advance();
    }
  }

  // Tile n / 2: K when n is even, else V. Into raw stage n % 2, which is no longer read.
  __device__ void send_raw(int32_t n) {
    const PageRun pages = pages_from(n / 2 * S::kPages);
    if (thread_ >= 32 || pages.count <= 0) return;
    const int32_t stage = n % 2;
    const uint32_t full = shared_address(&shared_.raw_full[stage]);
    if constexpr (kTrees) {
      gather(pages, shared_address(shared_.raw[stage]), S::kTokens * 128, n % 2);
      __syncwarp();
    }
    if (thread_ == 0) {
      barrier_expect(full, static_cast<uint32_t>(pages.whole * S::kRawGroups * kPageTokens * 128));
    }
    __syncwarp();
    if (thread_ >= pages.whole) return;
    const int32_t row = cache_row(pages_[pages.first + thread_], n % 2);
    const uint32_t to = shared_address(shared_.raw[stage]) + thread_ * kPageTokens * 128;
#pragma unroll
    for (int group = 0; group < S::kRawGroups; ++group) {
      copy_box(to + group * S::kTokens * 128, &p_.kv, group * 128, row, full);
    }
  }

  // Tokens from `tokens` on become zeros.
  __device__ void convert_one(Ring& ring, uint8_t (&tiles)[S::kStages][S::kTileBytes],
                              int32_t tokens) {
    const int32_t stage = cursor_.stage;
    barrier_wait(shared_address(&shared_.raw_full[raw_.stage]), raw_.phase);
    barrier_wait(shared_address(&ring.empty[stage]), cursor_.phase ^ 1);
    const uint32_t from = shared_address(shared_.raw[raw_.stage]);
    const uint32_t to = shared_address(tiles[stage]);
    constexpr int kChunks = kHeadDim / 16;  // of 16 raw bytes a row
    constexpr int kEach = S::kTokens * kChunks / kGroupThreads;
    constexpr int kBatch = kEach % 4 == 0 ? 2 : 3;
#pragma unroll 1
    for (int begin = thread_; begin < S::kTokens * kChunks; begin += kBatch * kGroupThreads) {
      uint4 raw[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int32_t row = (begin + i * kGroupThreads) / kChunks;
        const int32_t chunk = (begin + i * kGroupThreads) % kChunks;
        raw[i] = load_shared(from + chunk / 8 * S::kTokens * 128 + row * 128 +
                             (((chunk % 8) ^ (row % 8)) << 4));
        if (row >= tokens) raw[i] = uint4{};
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int32_t row = (begin + i * kGroupThreads) / kChunks;
        const int32_t chunk = (begin + i * kGroupThreads) % kChunks;
        const int32_t wide = 2 * chunk % 8;
        const uint32_t base = to + chunk / 4 * S::kGroupBytes + row * 128;
        store_wide(base + ((wide ^ (row % 8)) << 4), raw[i].x, raw[i].y);
        store_wide(base + (((wide + 1) ^ (row % 8)) << 4), raw[i].z, raw[i].w);
      }
    }
    fence_async_proxy();
    barrier_arrive(shared_address(&ring.full[stage]));
    raw_.advance();
    group_barrier(kProducerBarrier);  // the raw stage is free
  }

  __device__ static void store_wide(uint32_t to, uint32_t four, uint32_t next_four) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(widen(four)),
                 "r"(widen(four >> 16)), "r"(widen(next_four)), "r"(widen(next_four >> 16))
                 : "memory");
  }

  const AttentionParams& p_;
  Shared& shared_;
  const int32_t thread_;
  TileWork tile_;
  TreePath path_;
  const int32_t* pages_ = nullptr;
  RingCursor<S::kStages> cursor_;  // of both rings
  RingCursor<S::kRawStages> raw_;
};

// --- consumer ---

// A softmax whose maximum may lag behind the scores. Its `shrink` is what the sums of earlier tiles
// are to be multiplied with; they are in flight while a tile is weighed.
class LaggingSoftmax {
 public:
  __device__ LaggingSoftmax(const AttentionParams& p, const QueryRows& /*rows*/, int32_t kv_head,
                            int32_t /*row*/)
      : map_(p.scale, p.softcap, p.k_scale != nullptr ? p.k_scale[kv_head] : 1.0f) {}

  template <int kScores>
  __device__ void weigh(float (&s)[kScores], int32_t begin, const Sight& sight, int lane) {
    float factor = map_.factor;
    if (map_.cap > 0) {
      factor = 1;
#pragma unroll
      for (int e = 0; e < kScores; ++e) s[e] = map_.capped(s[e]);
    }
    if (sight.is_partial(begin, kScores * 2)) {
#pragma unroll
      for (int e = 0; e < kScores; ++e) {
        const int32_t token = begin + e / 4 * 8 + 2 * (lane % 4) + e % 2;
        if (!sight.sees(e / 2 % 2, token)) s[e] = minus_infinity();
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
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
  __device__ float over(int half, float v_scale, int32_t /*head*/) const {
    return v_scale / row_sum(rows_.sum[half]);
  }

 private:
  ScoreMap map_;
  SoftmaxRows rows_;
  float shrink_[2];
};

template <int kHeadDim, KvType kType, bool kGated, bool kTrees>
class Consumer {
 public:
  using Weights = std::conditional_t<kGated, GateWeights, LaggingSoftmax>;
  using S = Shape<kHeadDim, kType, kTrees>;
  using Shared = WgmmaShared<kHeadDim, kType, kTrees>;
  static constexpr int kScores = S::kTokens / 2;    // a thread's, of a tile
  static constexpr int kSums = S::kSumColumns / 2;  // a thread's, of a part
  static constexpr int kWeightSteps = S::kTokens / 16;
  static constexpr int kRowChunks = kHeadDim / 8;  // 16-byte chunks of a row of q or out

  __device__ Consumer(const AttentionParams& params, Shared& shared)
      : p_(params),
        shared_(shared),
        index_(static_cast<int32_t>(threadIdx.x) / kGroupThreads - 1),
        thread_(static_cast<int32_t>(threadIdx.x) % kGroupThreads) {}

  __device__ void run(const WorkspaceView& work, ItemWalk walk) {
    if (index_ == 1) pass_turn();
    const int32_t kv_heads = p_.config.num_kv_heads;
    int32_t item;
    if (!walk.next(item)) return;
    prepare_tile(listed_tile(work, item, kv_heads), 0);
    if constexpr (S::kQStages == 1) {
      while (true) {
        finish_q();
        attend();
        if (!walk.next(item)) return;
        slot_ ^= 1;
        group_barrier(kConsumerBarrier + index_);  // all have left the last tile
        prepare_tile(listed_tile(work, item, kv_heads), slot_);
      }
    } else {
      bool more = walk.next(item);
      ListedTile listed;
      if (more) listed = listed_tile(work, item, kv_heads);
      while (true) {
        finish_q();
        const bool follows = more;
        if (follows) {
          prepare_tile(listed, slot_ ^ 1);
          more = walk.next(item);
          if (more) listed = listed_tile(work, item, kv_heads);  // arrives during this tile
        }
        attend();
        if (!follows) return;
        slot_ ^= 1;
      }
    }
  }

 private:
  __device__ uint32_t q_address(int32_t stage) const {
    return shared_address(shared_.q[index_][stage]);
  }
  // Where 16-byte chunk c of row r of q (and of out, at the end) lies.
  __device__ uint32_t chunk_address(int32_t stage, int32_t r, int32_t c) const {
    return q_address(stage) + c / 8 * S::kQGroupBytes + r * 128 + (((c % 8) ^ (r % 8)) << 4);
  }

  __device__ const TileWork& tile() const { return shared_.tile[index_][slot_]; }
  __device__ int32_t q_stage() const { return S::kQStages == 2 ? slot_ : 0; }

  // The tile of the next finish_q(), and sends for its q.
  __device__ void prepare_tile(const ListedTile& listed, int32_t slot) const {
    const TileWork next = tile_work<kHeadDim, S::kPages>(p_, listed);
    if (thread_ == 0) shared_.tile[index_][slot] = next;
    fetch_q(next, S::kQStages == 2 ? slot : 0);
  }

  // This thread's chunks of a tile's q; rows past the end become zeros.
  __device__ void fetch_q(const TileWork& tile, int32_t stage) const {
    const auto* q = static_cast<const __nv_bfloat16*>(p_.q);
    const int32_t begin = tile.row_begin + index_ * kConsumerRows;
#pragma unroll 1
    for (int at = thread_; at < kConsumerRows * kRowChunks; at += kGroupThreads) {
      const int32_t r = at / kRowChunks;
      const int32_t c = at % kRowChunks;
      const bool inside = begin + r < tile.rows.count;
      const auto* from = q + (inside ? tile.rows.offset<kHeadDim>(begin + r) + c * 8 : 0);
      asm volatile(
          "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(chunk_address(stage, r, c)),
          "l"(from), "r"(inside ? 16 : 0)
          : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

  // Waits for the q of this tile.
  __device__ void finish_q() const {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    if constexpr (S::kFp8) {
#pragma unroll 1
      for (int at = thread_; at < kConsumerRows * kRowChunks; at += kGroupThreads) {
        const uint32_t address = chunk_address(q_stage(), at / kRowChunks, at % kRowChunks);
        const uint4 v = load_shared(address);
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address),
                     "r"(half_of_bf16(v.x)), "r"(half_of_bf16(v.y)), "r"(half_of_bf16(v.z)),
                     "r"(half_of_bf16(v.w))
                     : "memory");
      }
    }
    fence_async_proxy();
    group_barrier(kConsumerBarrier + index_);
  }

  __device__ void attend() {
    row_begin_ = tile().row_begin + index_ * kConsumerRows;
    const QueryRows& rows = tile().rows;
    const int32_t row = row_begin_ + thread_ / 32 * 16 + thread_ % 32 / 4;
    const Sight sight(rows, row, rows.position(row_begin_),
                      rows.position(row_begin_ + kConsumerRows - 1), p_.config.window);
    const int32_t lane = thread_ % 32;
    const int32_t tiles = ceil_div(tile().num_pages, S::kPages);
    int32_t begin = tile().first_page * kPageTokens;

    float out[S::kSumParts][kSums] = {};
    float s[kScores];
    uint32_t weights[kWeightSteps][4];
    Weights weigher(p_, rows, tile().kv_head, row);
    take_turn();
    begin_scores(s);
    pass_turn();
    wgmma_wait<0>();
    hold(s);
    release(shared_.k_ring, k_cursor_);
    weigher.weigh(s, begin, sight, lane);
    pack(weights, s);
    for (int32_t i = 1; i < tiles; ++i) {
      begin += S::kTokens;
      take_turn();
      begin_scores(s);
      begin_sums(i - 1, out, weights);
      pass_turn();
      wgmma_wait<1>();
      hold(s);
      release(shared_.k_ring, k_cursor_);
      weigher.weigh(s, begin, sight, lane);
      wgmma_wait<0>();
#pragma unroll
      for (int part = 0; part < S::kSumParts; ++part) hold(out[part]);
      release(shared_.v_ring, v_cursor_);
      if constexpr (!kGated) weigher.rescale(out);
      pack(weights, s);
    }
    begin_sums(tiles - 1, out, weights);
    wgmma_wait<0>();
#pragma unroll
    for (int part = 0; part < S::kSumParts; ++part) hold(out[part]);
    release(shared_.v_ring, v_cursor_);
    if constexpr (kGated) weigher.settle(out);
    write(out, weigher);
  }

  // The consumers issue their products in turns, so that one's softmax runs under the other's
  // products. Consumer 0 begins; both have as many turns.
  __device__ void take_turn() const {
    asm volatile("bar.sync %0, 256;" ::"r"(kTurnBarrier + index_) : "memory");
  }
  __device__ void pass_turn() const {
    asm volatile("bar.arrive %0, 256;" ::"r"(kTurnBarrier + 1 - index_) : "memory");
  }

  // s = q . K of the tile in the K ring.
  __device__ void begin_scores(float (&s)[kScores]) {
    barrier_wait(shared_address(&shared_.k_ring.full[k_cursor_.stage]), k_cursor_.phase);
    const uint64_t q = operand_by_rows(q_address(q_stage()));
    const uint64_t k = operand_by_rows(shared_address(shared_.k[k_cursor_.stage]));
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      wgmma_shared<S::kFp8>(s, advanced(q, step / 4 * S::kQGroupBytes + step % 4 * 32),
                            advanced(k, step / 4 * S::kGroupBytes + step % 4 * 32), step > 0);
    }
    wgmma_commit();
  }

  // out += weights . V of tile i, which the V ring has.
  __device__ void begin_sums(int32_t i, float (&out)[S::kSumParts][kSums],
                             const uint32_t (&weights)[kWeightSteps][4]) {
    barrier_wait(shared_address(&shared_.v_ring.full[v_cursor_.stage]), v_cursor_.phase);
    const uint32_t values = shared_address(shared_.v[v_cursor_.stage]);
    if constexpr (!S::kFp8) clear_tail(i, values);
    const uint64_t v = operand_by_columns(values, S::kGroupBytes);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kWeightSteps; ++step) {
#pragma unroll
      for (int part = 0; part < S::kSumParts; ++part) {
        wgmma_registers<S::kFp8>(out[part], weights[step],
                                 advanced(v, part * 2 * S::kGroupBytes + step * 2048));
      }
    }
    wgmma_commit();
  }

  // Puts zeros behind TileWork::end(). Both consumers write the same ones.
  __device__ void clear_tail(int32_t i, uint32_t values) {
    const int32_t begin = (tile().first_page + i * S::kPages) * kPageTokens;
    const int32_t end = tile().end() - begin;
    if (end >= S::kTokens) return;
    const int32_t chunks = (S::kTokens - end) * 8;
#pragma unroll
    for (int group = 0; group < S::kColumnGroups; ++group) {
      const uint32_t from = values + group * S::kGroupBytes + end * 128;
      for (int32_t at = thread_; at < chunks; at += kGroupThreads) {
        asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(from + at * 16), "r"(0)
                     : "memory");
      }
    }
    fence_async_proxy();
    group_barrier(kConsumerBarrier + index_);
  }

  // This warp has read the stage.
  __device__ void release(Ring& ring, RingCursor<S::kStages>& cursor) {
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
        weights[step][i] = S::kFp8 ? pack_half(low, high) : pack_bf16(low, high);
      }
    }
  }

  // Through the memory of q, so that a row goes out in whole lines.
  __device__ void write(const float (&out)[S::kSumParts][kSums], const Weights& weigher) {
    const float v_scale = p_.v_scale != nullptr ? p_.v_scale[tile().kv_head] : 1.0f;
    const int32_t r = thread_ / 32 * 16 + thread_ % 32 / 4;
    group_barrier(kConsumerBarrier + index_);  // q has been read
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t head = tile().rows.head(row_begin_ + r + 8 * half, tile().kv_head);
      const float over = weigher.over(half, v_scale, head);
#pragma unroll
      for (int c = 0; c < kRowChunks; ++c) {
        const float(&sums)[kSums] = out[c / 16];
        const int e = c % 16 * 4 + 2 * half;
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(chunk_address(q_stage(), r + 8 * half, c) +
                                                     thread_ % 4 * 4),
                     "r"(pack_bf16(sums[e] * over, sums[e + 1] * over))
                     : "memory");
      }
    }
    group_barrier(kConsumerBarrier + index_);
    auto* to = static_cast<__nv_bfloat16*>(p_.out);
#pragma unroll 4
    for (int i = 0; i < kConsumerRows * kRowChunks / kGroupThreads; ++i) {
      const int32_t row = (i * kGroupThreads + thread_) / kRowChunks;
      const int32_t c = (i * kGroupThreads + thread_) % kRowChunks;
      if (row_begin_ + row >= tile().rows.count) continue;
      *reinterpret_cast<uint4*>(to + tile().rows.offset<kHeadDim>(row_begin_ + row) + c * 8) =
          load_shared(chunk_address(q_stage(), row, c));
    }
  }

  const AttentionParams& p_;
  Shared& shared_;
  const int32_t index_;
  const int32_t thread_;
  int32_t slot_ = 0;  // of the tile and its q
  int32_t row_begin_ = 0;
  RingCursor<S::kStages> k_cursor_;
  RingCursor<S::kStages> v_cursor_;
};

template <int kHeadDim, KvType kType, bool kGated, bool kTrees>
__global__ void __launch_bounds__(kThreads, 1)
    wgmma_kernel(const __grid_constant__ AttentionParams p) {
  using S = Shape<kHeadDim, kType, kTrees>;
  extern __shared__ __align__(1024) uint8_t raw[];
  auto& shared = *reinterpret_cast<WgmmaShared<kHeadDim, kType, kTrees>*>(raw);
  if (threadIdx.x == 0) {
    prefetch_map(p.kv.box);
    for (int i = 0; i < S::kStages; ++i) {
      barrier_init(shared_address(&shared.k_ring.full[i]), S::kFullArrivals);
      barrier_init(shared_address(&shared.v_ring.full[i]), S::kFullArrivals);
      barrier_init(shared_address(&shared.k_ring.empty[i]), kConsumers * 4);
      barrier_init(shared_address(&shared.v_ring.empty[i]), kConsumers * 4);
    }
    for (uint64_t& barrier : shared.raw_full) barrier_init(shared_address(&barrier), 1);
    barrier_init_fence();
  }
  __syncthreads();
  dependency_wait();
  dependency_trigger();
  WorkspaceView work;
  view_workspace(p.workspace, &work);
  const ItemWalk walk{work.header->num_tiles * p.config.num_kv_heads};
  if (threadIdx.x < kGroupThreads) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::kProducerRegisters));
    if (S::kFp8 || threadIdx.x < 32) Producer<kHeadDim, kType, kTrees>(p, shared).run(work, walk);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::kConsumerRegisters));
    Consumer<kHeadDim, kType, kGated, kTrees>(p, shared).run(work, walk);
  }
}

template <int kHeadDim, KvType kType, bool kGated>
struct Launch {
  static cudaError_t run(const AttentionParams& params, cudaStream_t stream) {
    // Elsewhere trees are split; a gate has none.
    if constexpr (!kGated) {
      if (params.ancestors != nullptr && params.config.whole_sequences) {
        return launch<true>(params, stream);
      }
    }
    return launch<false>(params, stream);
  }

  template <bool kTrees>
  static cudaError_t launch(const AttentionParams& params, cudaStream_t stream) {
    constexpr size_t kShared = sizeof(WgmmaShared<kHeadDim, kType, kTrees>);
    static_assert(kShared <= 227 * 1024);
    const auto kernel = wgmma_kernel<kHeadDim, kType, kGated, kTrees>;
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
    if (error != cudaSuccess) return error;
    const int32_t items = tile_items_bound(params);
    const int32_t blocks = items < params.config.num_sms ? items : params.config.num_sms;
    return launch_pdl(kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), kShared, stream,
                      params);
  }
};

}  // namespace

cudaError_t launch_attention_wgmma(const AttentionParams& params, cudaStream_t stream) {
  return launch_of_config<Launch>(params, stream);
}

}  // namespace rudder::cuda
