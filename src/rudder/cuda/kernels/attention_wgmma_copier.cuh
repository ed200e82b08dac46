// The warp of the wgmma kernel that takes tiles of rows from the work list and moves their pages
// through the copy engine. Included by attention_wgmma.cu only.
#pragma once

#include "rudder/cuda/kernels/attention_device.cuh"
#include "rudder/cuda/kernels/attention_wgmma_shared.cuh"
#include "rudder/cuda/kernels/attention_work.cuh"
#include "rudder/cuda/kernels/tree_path.cuh"

namespace rudder::cuda {

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

}  // namespace rudder::cuda
