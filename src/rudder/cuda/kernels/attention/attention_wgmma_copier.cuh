// The warp of the wgmma kernel that moves pages through the copy engine. Included by
// attention_wgmma.cu only.
#pragma once

#include "rudder/cuda/kernels/attention/attention_device.cuh"
#include "rudder/cuda/kernels/attention/attention_wgmma_shared.cuh"
#include "rudder/cuda/kernels/tree_path.cuh"

namespace rudder::cuda {

// Fills the rings of K and V: a warp. Keys come a tile ahead of values, in the order in which the
// consumers need them.
template <int kHeadDim, KvType kType, Weighting kWeighting, bool kTrees>
class Copier {
 public:
  using S = Shape<kHeadDim, kType, kWeighting, kTrees>;
  using Shared = WgmmaShared<kHeadDim, kType, kWeighting, kTrees>;

  __device__ Copier(const AttentionParams& params, Shared& shared)
      : p_(params), shared_(shared), lane_(static_cast<int32_t>(threadIdx.x) % 32) {}

  __device__ void run() {
    RingCursor<kTileStages> slot;
    while (true) {
      barrier_wait(shared_address(&shared_.tile_ring.full[slot.stage]), slot.phase);
      const TileWork& tile = shared_.tile[slot.stage];
      now_ = {tile.num_pages, tile.first_page, tile.kv_head, tile.kv_len, tile.table, {}};
      if (now_.num_pages == 0) return;
      if constexpr (kTrees) now_.path = tile.path;
      int32_t block = lane_ < S::kPages ? tile.blocks[lane_] : 0;
      int32_t block_before = 0;
      slot.advance();
      for (int32_t first = 0; first < now_.num_pages; first += S::kPages) {
        const int32_t block_then = block_of(first + S::kPages);
        copy_keys_of(first, block);
        if (first > 0) copy_values_of(first - S::kPages, block_before);
        block_before = block;
        block = block_then;
      }
      copy_values_of((now_.num_pages - 1) / S::kPages * S::kPages, block_before);
    }
  }

 private:
  struct Source {
    int32_t num_pages;
    int32_t first_page;
    int32_t kv_head;
    int32_t kv_len;
    const int32_t* table;
    TreePath path;
  };

  // The lane's block of the pages from `first` on.
  __device__ int32_t block_of(int32_t first) const {
    if (lane_ >= S::kPages || first + lane_ >= now_.num_pages) return 0;
    return now_.table[now_.first_page + first + lane_];
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

  // Those of the tile of keys that begins with page `first`.
  __device__ PageRun run_of(int32_t first) const {
    const int32_t count = min(S::kPages, now_.num_pages - first);
    PageRun run = {first, count, count, count};
    if constexpr (kTrees) {
      const int32_t before = now_.path.base / kPageTokens - (now_.first_page + first);
      if (now_.path.tokens != 0) run.whole = max(0, min(before, count));
    }
    return run;
  }
  __device__ void copy_keys_of(int32_t first, int32_t block) {
    PageRun run = run_of(first);
    // The rows of a gate's part see on behind its last page, as a page in front shifts its tiles.
    // The scores of what shared memory had there may be NaN, and NaN times a value of zero is NaN.
    if constexpr (S::kGated) run.filled = S::kPages;
    copy(shared_.k_ring, k_cursor_, shared_.k[k_cursor_.stage], run, block, 0);
    k_cursor_.advance();
  }
  __device__ void copy_values_of(int32_t first, int32_t block) {
    PageRun run = run_of(first);
    if constexpr (S::kFp8) {
      copy(shared_.raw_ring, raw_, shared_.raw[raw_.stage], run, block, 1);
      raw_.advance();
    } else {
      run.filled = S::kPages;
      copy(shared_.v_ring, v_cursor_, shared_.v[v_cursor_.stage], run, block, 1);
      v_cursor_.advance();
    }
  }

  template <int kStages>
  __device__ void copy(Ring& ring, const RingCursor<kStages>& cursor, uint8_t* stage,
                       const PageRun& run, int32_t block, int32_t is_v) const {
    constexpr int kColumns = S::kFp8 ? 128 : 64;
    const uint32_t full = shared_address(&ring.full[cursor.stage]);
    const uint32_t to = shared_address(stage);
    barrier_wait(shared_address(&ring.empty[cursor.stage]), cursor.phase ^ 1);
    if constexpr (kTrees) gather(run, to, is_v);
    const int32_t boxes = run.filled - (run.count - run.whole);
    if (lane_ == 0) {
      barrier_expect(full, static_cast<uint32_t>(boxes * S::kCacheGroups * kPageTokens * 128));
    }
    __syncwarp();
    const bool is_whole = lane_ < run.whole;
    if (is_whole || (lane_ >= run.count && lane_ < run.filled)) {
      // Boxes outside the cache come as zeros.
      const int32_t row = is_whole ? cache_row(block, is_v) : -kPageTokens;
#pragma unroll
      for (int group = 0; group < S::kCacheGroups; ++group) {
        const uint32_t box = to + group * S::kTokens * 128 + lane_ * kPageTokens * 128;
        if constexpr (S::kInRuns) {
          copy_runs(box, &p_.kv, group * kColumns, row / kPageTokens, full);
        } else {
          copy_box(box, p_.kv.box, group * kColumns, row, full);
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
    const int32_t begin = (now_.first_page + run.first) * kPageTokens;
    const int32_t end = min(run.count * kPageTokens, now_.kv_len - begin);
    const int32_t first = run.whole * kPageTokens;
#pragma unroll 1
    for (int32_t at = lane_; at < (end - first) * kRowChunks; at += 32) {
      const int32_t row = first + at / kRowChunks;
      const int32_t chunk = at % kRowChunks;
      const int32_t offset = now_.path.offset_of(begin + row);
      const int64_t from = cache_row(now_.table[offset / kPageTokens], is_v) + offset % kPageTokens;
      store_shared(to + chunk / 8 * S::kTokens * 128 + row * 128 + (((chunk % 8) ^ (row % 8)) << 4),
                   *reinterpret_cast<const uint4*>(static_cast<const uint8_t*>(p_.kv_storage) +
                                                   from * kRowBytes + chunk * 16));
    }
    fence_async_proxy();
    __syncwarp();  // what is gathered is there before the warp says so
  }

  const AttentionParams& p_;
  Shared& shared_;
  const int32_t lane_;
  Source now_ = {};
  RingCursor<S::kStages> k_cursor_;
  RingCursor<S::kStages> v_cursor_;
  RingCursor<S::kRawStages> raw_;
};

}  // namespace rudder::cuda
