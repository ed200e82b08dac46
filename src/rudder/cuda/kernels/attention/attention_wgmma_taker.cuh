// The warp of the wgmma kernel that takes tiles of rows from the work list and tells the other
// warps of them. Included by attention_wgmma.cu only.
#pragma once

#include "rudder/cuda/kernels/attention/attention_device.cuh"
#include "rudder/cuda/kernels/attention/attention_wgmma_shared.cuh"
#include "rudder/cuda/kernels/attention/attention_work.cuh"

namespace rudder::cuda {

// Takes tiles, as many ahead as the ring has room for, so that nobody waits for what is read of
// them: a warp. Where the work list says so, blocks take them in turns, there and back: 0 .. n-1,
// then 2n-1 .. n. Else the block that is free first takes the next.
template <int kHeadDim, KvType kType, Weighting kWeighting, bool kTrees, bool kCuts>
class Taker {
 public:
  using S = Shape<kHeadDim, kType, kWeighting, kTrees>;
  using Shared = WgmmaShared<kHeadDim, kType, kWeighting, kTrees>;

  __device__ Taker(const AttentionParams& params, Shared& shared, const WorkspaceView& work)
      : p_(params),
        shared_(shared),
        work_(work),
        lane_(static_cast<int32_t>(threadIdx.x) % 32),
        count_(work.header->num_tiles * params.config.num_kv_heads),
        in_turns_(work.header->in_turns != 0),
        item_(static_cast<int32_t>(blockIdx.x)) {}

  __device__ void run() {
    for (; item_ < count_; item_ = next()) publish();
    wait_for_slot();
    if (lane_ == 0) shared_.tile[slot_.stage].num_pages = 0;
    barrier_arrive(shared_address(&shared_.tile_ring.full[slot_.stage]));
    leave();
  }

 private:
  __device__ int32_t next() {
    const auto blocks = static_cast<int32_t>(gridDim.x);
    const auto block = static_cast<int32_t>(blockIdx.x);
    if (in_turns_) {
      ++round_;
      return round_ * blocks + (round_ % 2 == 0 ? block : blocks - 1 - block);
    }
    wait_for_slot();  // a block that has no room leaves the tile to others
    int32_t taken = 0;
    if (lane_ == 0) taken = blocks + atomicAdd(&work_.header->taken, 1);
    return __shfl_sync(kAllLanes, taken, 0);
  }
  // The last block sets the counters back for the next launch.
  __device__ void leave() {
    if (in_turns_ || lane_ != 0) return;
    __threadfence();
    if (atomicAdd(&work_.header->left, 1) != static_cast<int32_t>(gridDim.x) - 1) return;
    work_.header->taken = 0;
    work_.header->left = 0;
  }

  __device__ void wait_for_slot() const {
    barrier_wait(shared_address(&shared_.tile_ring.empty[slot_.stage]), slot_.phase ^ 1);
  }

  __device__ void publish() {
    const AttentionConfig& config = p_.config;
    const HeadTile at = head_tile(*work_.header, item_, config.num_kv_heads);
    const TileItem listed = work_.tiles[at.tile];
    const TiledSeq seq = work_.tiled[listed.entry];
    const int32_t end = (listed.tile + 1) * S::kTileRows;
    TileWork tile = {};
    tile.rows = QueryRows::of<kHeadDim>(config, seq.q_begin, seq.q_len, seq.kv_len, at.kv_head);
    tile.row_begin = end - S::kTileRows;
    tile.kv_len = seq.kv_len;
    tile.kv_head = at.kv_head;
    tile.first_page = first_page_of(config, tile.rows.position(tile.row_begin), S::kPages);
    tile.num_pages = tile.rows.position(end - 1) / kPageTokens + 1 - tile.first_page;
    TilePart part = {};
    if constexpr (kCuts) part = take_part(listed, &tile);
    tile.table = p_.block_table + seq.table_row * p_.max_blocks;
    tile.k_scale = p_.scales.k != nullptr ? p_.scales.k[at.kv_head] : 1.0f;
    if constexpr (kTrees) tile.path = {seq.path, seq.path_base};
    const int32_t block =
        lane_ < min(S::kPages, tile.num_pages) ? tile.table[tile.first_page + lane_] : 0;
    const float v_scale = p_.scales.v != nullptr ? p_.scales.v[at.kv_head] : 1.0f;
    float sigma = 0;
    RowEnd row_end = {};
    if (lane_ < tile.rows.group) {
      const int32_t head = at.kv_head * tile.rows.group + lane_;
      if constexpr (S::kGated) {
        sigma = p_.gate.sigma[head];
        row_end.scale = p_.gate.gamma[head] * v_scale;
      } else {
        row_end = RowEnd::of(p_, v_scale, head);
      }
    }
    tile.has_gain = __any_sync(kAllLanes, sigma * p_.scale * tile.k_scale < 0);
    wait_for_slot();
    TileWork& to = shared_.tile[slot_.stage];
    if (lane_ == 0) to = tile;
    if (kCuts && lane_ == 0) shared_.part[slot_.stage] = part;
    __syncwarp();
    if (lane_ < S::kPages) to.blocks[lane_] = block;
    if (lane_ < kMaxGroup) {
      to.sigma[lane_] = sigma;
      to.ends[lane_] = row_end;
    }
    barrier_arrive(shared_address(&shared_.tile_ring.full[slot_.stage]));
    slot_.advance();
  }

  // A gate's part has a page of keys in front of it, for its filter.
  __device__ TilePart take_part(const TileItem& listed, TileWork* tile) const {
    if (listed.part == TileItem::kWhole) return {1, 0, 0, 0, false};
    const int32_t pages = work_.header->part_pages;
    const int32_t heads = p_.config.num_kv_heads;
    const int32_t begin = listed.part * pages;
    const int32_t first_slot = listed.first_slot * heads + tile->kv_head;
    const bool has_lead = S::kGated && listed.part > 0;
    const int32_t lead = has_lead ? 1 : 0;
    const int32_t count = ceil_div(tile->num_pages, pages);
    tile->num_pages = min(pages, tile->num_pages - begin) + lead;
    tile->first_page += begin - lead;
    return {count, first_slot + listed.part * heads, first_slot, heads, has_lead};
  }

  const AttentionParams& p_;
  Shared& shared_;
  const WorkspaceView& work_;
  const int32_t lane_;
  const int32_t count_;
  const bool in_turns_;
  int32_t round_ = 0;
  int32_t item_;  // that is published next
  RingCursor<kTileStages> slot_;
};

}  // namespace rudder::cuda
