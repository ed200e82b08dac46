// The list of tiles of a step: their order, and which of them are cut along their keys. By the
// block of the work list; included by attention_work_list.cu only.
#pragma once

#include "rudder/cuda/kernels/attention/attention_work.cuh"

namespace rudder::cuda {

inline constexpr int kWorkListThreads = 1024;

// The last of [0, count) whose key is <= `at`; keys rise, the first is <= `at`.
template <typename Key>
__device__ inline int32_t last_not_above(int32_t count, int32_t at, const Key& key) {
  int32_t low = 0;
  int32_t high = count - 1;
  while (low < high) {
    const int32_t middle = (low + high + 1) / 2;
    if (key(middle) <= at) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Units of `tokens` that a tile goes through.
__device__ inline int32_t tile_length(const AttentionConfig& config, const TiledSeq& seq,
                                      int32_t tile, int32_t tokens) {
  const int32_t group = config.num_heads / config.num_kv_heads;
  const int32_t rows = tile_rows(config);
  const int32_t prefix = seq.kv_len - seq.q_len;
  const int32_t all = seq.q_len * group;
  const int32_t end = (tile + 1) * rows < all ? (tile + 1) * rows : all;
  const int32_t last = prefix + (end - 1) / group;
  const int32_t first = first_visible(prefix + tile * rows / group, config.window);
  return last / tokens - first / tokens + 1;
}
__device__ inline int32_t tile_cost(const AttentionConfig& config, const TiledSeq& seq,
                                    int32_t tile) {
  return tile_length(config, seq, tile, 64);
}
__device__ inline int32_t tile_pages(const AttentionConfig& config, const TiledSeq& seq,
                                     int32_t tile) {
  return tile_length(config, seq, tile, kAttentionBlockSize);
}

// In shared memory.
struct TileOrder {
  static constexpr int kBuckets = 64;  // of costs
  static constexpr int kWarps = kWorkListThreads / 32;
  int32_t max_cost;
  int32_t buckets[kBuckets];        // tiles, then where the next one of each goes
  int32_t first[kWarps][kBuckets];  // of a warp's tiles
};

// Lists the tiles longest first (to a 64th of the longest), so that the short ones fill the end;
// those of one bucket in the order of the sequences, so that a step cuts the same ones each time.
__device__ inline void order_tiles(const AttentionConfig& config, const WorkspaceView& work,
                                   int32_t tiled, int32_t tiles, TileOrder* order) {
  const auto item_of = [&](int32_t i) {
    const int32_t entry =
        last_not_above(tiled, i, [&](int32_t e) { return work.tiled[e].tile_begin; });
    return TileItem{entry, i - work.tiled[entry].tile_begin, TileItem::kWhole, 0};
  };
  const auto cost_of = [&](const TileItem& item) {
    return tile_cost(config, work.tiled[item.entry], item.tile);
  };
  const auto bucket_of = [&](int32_t cost) {
    return TileOrder::kBuckets - 1 -
           static_cast<int32_t>(int64_t{cost} * (TileOrder::kBuckets - 1) / order->max_cost);
  };
  int32_t* const buckets = order->buckets;
  if (threadIdx.x < TileOrder::kBuckets) buckets[threadIdx.x] = 0;
  if (threadIdx.x == 0) order->max_cost = 1;
  __syncthreads();
  for (int32_t i = threadIdx.x; i < tiles; i += kWorkListThreads) {
    atomicMax(&order->max_cost, cost_of(item_of(i)));
  }
  __syncthreads();
  for (int32_t i = threadIdx.x; i < tiles; i += kWorkListThreads) {
    atomicAdd(&buckets[bucket_of(cost_of(item_of(i)))], 1);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t begin = 0;
    for (int b = 0; b < TileOrder::kBuckets; ++b) {
      const int32_t in_bucket = buckets[b];
      buckets[b] = begin;
      begin += in_bucket;
    }
  }
  __syncthreads();
  const auto warp = static_cast<int32_t>(threadIdx.x) / 32;
  const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
  for (int32_t base = 0; base < tiles; base += kWorkListThreads) {
    const int32_t i = base + static_cast<int32_t>(threadIdx.x);
    for (int32_t b = lane; b < TileOrder::kBuckets; b += 32) order->first[warp][b] = 0;
    TileItem item = {};
    int32_t bucket = -1;
    if (i < tiles) {
      item = item_of(i);
      bucket = bucket_of(cost_of(item));
    }
    __syncwarp();
    const uint32_t same = __match_any_sync(0xffffffffu, bucket);
    const int32_t before = __popc(same & ((1u << lane) - 1));
    if (bucket >= 0 && before == 0) order->first[warp][bucket] = __popc(same);
    __syncthreads();
    if (threadIdx.x < TileOrder::kBuckets) {
      for (int w = 0; w < TileOrder::kWarps; ++w) {
        const int32_t count = order->first[w][threadIdx.x];
        order->first[w][threadIdx.x] = buckets[threadIdx.x];
        buckets[threadIdx.x] += count;
      }
    }
    __syncthreads();
    if (bucket >= 0) work.tiles[order->first[warp][bucket] + before] = item;
    __syncthreads();
  }
}

// How the tiles at the end of the list are cut along their keys.
struct TailCut {
  static constexpr int32_t kMostParts = 16;
  int32_t most_pages;             // of a tile of the tail
  int32_t parts[kMostParts + 1];  // of all, when the longest one is cut into so many
  int32_t pages;                  // of a part; 0: nothing is cut
  int32_t taken;                  // parts listed so far
};

// In steps of a tile: what a part takes beside its own, and what adding parts up does.
inline constexpr int32_t kTileSteps = 1;
inline constexpr int32_t kAddSteps = 3;

// Blocks take a tile each until less than one for each is left: of those the keys are cut, where
// the parts fill the device better and the time that saves is more than adding them up takes. So
// few tiles behind long contexts have all multiprocessors.
__device__ inline void cut_tail(const AttentionConfig& config, const WorkspaceView& work,
                                int32_t tiles, TailCut* cut) {
  const int32_t heads = config.num_kv_heads;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int32_t left = tiles * heads % config.num_sms;
  if (left == 0 || work.header->section_heads < heads) return;
  const int32_t tail = ceil_div(left, heads);  // at most one a multiprocessor, so one a thread
  const int32_t begin = tiles - tail;
  const int32_t in_step = step_pages(config.head_dim);
  TileItem item = {};
  int32_t pages = 0;
  if (thread < tail) {
    item = work.tiles[begin + thread];
    pages = tile_pages(config, work.tiled[item.entry], item.tile);
  }
  if (thread == 0) *cut = TailCut{};
  __syncthreads();
  if (thread < tail) atomicMax(&cut->most_pages, pages);
  __syncthreads();
  const int32_t steps = ceil_div(cut->most_pages, in_step);
  const auto part_pages = [&](int32_t parts) { return ceil_div(steps, parts) * in_step; };
  if (thread < tail) {
    for (int32_t parts = 2; parts <= TailCut::kMostParts; ++parts) {
      atomicAdd(&cut->parts[parts], ceil_div(pages, part_pages(parts)));
    }
  }
  __syncthreads();
  if (thread == 0) {
    int32_t least = steps + kTileSteps;
    for (int32_t parts = 2; parts <= TailCut::kMostParts; ++parts) {
      const int32_t items = cut->parts[parts] * heads;
      if (items > tile_parts_room(config.head_dim)) break;
      const int32_t took = ceil_div(items, config.num_sms) * (ceil_div(steps, parts) + kTileSteps) +
                           kAddSteps + parts / 3;
      if (took < least) {
        least = took;
        cut->pages = part_pages(parts);
      }
    }
  }
  __syncthreads();
  if (cut->pages == 0) return;
  const int32_t parts = ceil_div(pages, cut->pages);
  if (thread < tail) {
    item.first_slot = atomicAdd(&cut->taken, parts);
    for (item.part = 0; item.part < parts; ++item.part) {
      work.tiles[begin + item.first_slot + item.part] = item;
    }
  }
  for (int32_t i = thread; i < 2 * kMaxTileParts; i += kWorkListThreads) work.part_arrivals[i] = 0;
  __syncthreads();
  if (thread == 0) {
    work.header->num_tiles = begin + cut->taken;
    work.header->part_pages = cut->pages;
    work.header->in_turns = 0;
  }
}

}  // namespace rudder::cuda
