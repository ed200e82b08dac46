// The work list of attention: records in the workspace that attention_work_list.cu writes and the
// attention kernels read. Private to attention*.cu.
//
// Split work is numbered in units. A unit is one page (KV block) of one segment; a segment is what
// one row tile (16 pairs of token and q head) of one KV head of one sequence reads. Units are
// numbered by sequence, then KV head, then row tile, then page. Worker w (a block of the persistent
// grid) has the units [w * share, (w + 1) * share). When several workers have a part of a segment,
// they write partial results, and the last of them to finish adds these up. Only the first and the
// last part of a worker can be such, so 2 partial results for each worker are enough.
//
// Units behind a segment's last page are no pages (segment_units()). Where segments are few, each
// begins with a worker's share, so that nobody has parts of two of them one after the other. Else
// kGapPages follow each: a part takes a worker time beside its pages, so who has many short
// segments gets fewer pages.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "rudder/cuda/kernels/attention/attention.h"

namespace rudder::cuda {

inline constexpr int32_t kRowTile = 16;        // rows (token, q head) of a split segment
inline constexpr int32_t kMaxSplitRows = 512;  // of a sequence that is not always split, but may be
inline constexpr int32_t kMaxWorkers = 640;    // blocks of the split kernel: at most 4 on each SM
inline constexpr int32_t kMaxGroup = 16;       // q heads of a KV head
// A worker's pages: not cut finer than this, about 64 KB of bf16 at the heads of 128 that it was
// measured with.
inline constexpr int32_t kMaxShareFloor = 8;
inline constexpr int32_t kMaxWideShareFloor = 2;
inline constexpr int32_t kPartPages = 8;  // that take as long as what every part takes beside
// Where segments are many (ADR 0008): units behind each of them, and how many pages at either end
// of one are not cut off, since adding parts up takes as long.
inline constexpr int32_t kGapPages = 16;
inline constexpr int32_t kUncutPages = 12;

inline constexpr int32_t kMaxTileParts = 192;  // parts of tiles of all KV heads

struct WorkHeader {
  int32_t num_tiles;
  int32_t section_heads;  // KV heads whose tiles are taken before those of other heads
  // Blocks of the wgmma kernel take tiles in turns, or else each when it is free.
  int32_t in_turns;
  int32_t part_pages;  // TileItem::part
  // Of the wgmma kernel's blocks, 0 between launches: items taken beside the blocks' first ones,
  // and blocks that have found no more.
  int32_t taken;
  int32_t left;
};

struct alignas(16) SplitSeq {
  int32_t unit_begin;
  int32_t num_pages;  // visible to some row: pages [first_page, first_page + num_pages)
  int32_t first_page;
  int32_t kv_len;
  int32_t q_begin;
  int32_t q_len;
  int32_t table_row;
  int32_t row_tiles;
};
static_assert(sizeof(SplitSeq) == 32);

struct alignas(16) WorkerRange {
  int32_t begin;  // units
  int32_t end;
  const SplitSeq* entry;  // of unit `begin`
  // Where unit `begin` is.
  int32_t kv_head;
  int32_t row_tile;
  int32_t page;  // of the segment
  // As for every worker.
  int32_t share;
  int32_t slack;
  int32_t num_empty;
  int32_t unit_step;  // segment_units()
  // Pages of all segments over all workers, also those that have none, rounded up; a share of these
  // where segments differ in length (attention_work_list.cu).
  int32_t even_pages;
  SplitSeq seq;  // a copy of *entry
};
static_assert(sizeof(WorkerRange) == 80);

// Units from a segment's begin to the next one's. unit_step is a worker's share, or 0 where
// kGapPages follow a segment.
__host__ __device__ inline int32_t segment_units(int32_t num_pages, int32_t unit_step) {
  if (unit_step == 0) return num_pages + kGapPages;
  return (num_pages + unit_step - 1) / unit_step * unit_step;
}

// A sequence, or a token of a tree: that has its path as a sequence.
struct alignas(16) TiledSeq {
  int32_t tile_begin;
  int32_t q_begin;
  int32_t q_len;
  int32_t kv_len;
  int32_t table_row;
  int32_t path_base;  // TreePath
  uint64_t path;
};
static_assert(sizeof(TiledSeq) == 32);

struct TileItem {
  static constexpr int32_t kWhole = -1;
  int32_t entry;  // TiledSeq
  int32_t tile;   // rows [tile * tile_rows, ...) of its q_len * group
  // The tile reads its pages [part * WorkHeader::part_pages, ...) alone, or kWhole. Who finishes
  // the last part of a tile adds all up.
  int32_t part;
  int32_t first_slot;  // part p of KV head h has slot (first_slot + p) * heads + h of partial_out
};
static_assert(sizeof(TileItem) == 16);

// The tiles of a step are its TileItems, each with every KV head. They are taken section by
// section: a section is all TileItems of some KV heads, whose keys and values fit the L2 cache
// together.
struct HeadTile {
  int32_t tile;  // of WorkspaceView::tiles
  int32_t kv_head;
};
__device__ inline HeadTile head_tile(const WorkHeader& header, int32_t item, int32_t num_kv_heads) {
  const int32_t in_section = header.num_tiles * header.section_heads;
  const int32_t first_head = item / in_section * header.section_heads;
  const int32_t heads = min(header.section_heads, num_kv_heads - first_head);
  const int32_t at = item % in_section;
  return {at / heads, first_head + at % heads};
}

struct EmptySeq {  // padding: its rows of out become zeros
  int32_t q_begin;
  int32_t q_len;
};

// A segment that begins in a worker's range and goes on in those of the next ones: what the wide
// kernel leaves for the one that adds up partial results.
struct CutSegment {
  int32_t num_workers;  // that have a part of it; 0: the range ends with a segment
  int32_t kv_head;
  int32_t row_tile;
  int32_t q_begin;
  int32_t q_len;
};

struct WorkspaceView {
  WorkHeader* header;
  SplitSeq* split;          // [max_seqs]
  TiledSeq* tiled;          // [max_tokens]: each has a token at least
  EmptySeq* empty;          // [max_seqs]
  TileItem* tiles;          // [max_tokens + kMaxTileParts], longest first: a tile has a token's
                            // rows at least
  uint32_t* part_arrivals;  // [2 * kMaxTileParts], of each consumer; 0 between launches
  WorkerRange* workers;     // [kMaxWorkers]
  uint32_t* arrivals;       // [kMaxWorkers], by the first worker of a segment; 0 between launches
  CutSegment* cuts;         // [kMaxWorkers], of heads that are_wide()
  float2* partial_max_sum;  // [2 * kMaxWorkers, kRowTile]: max (of base-2 scores), sum
  // [2 * kMaxWorkers, kRowTile, head_dim], unnormalised; in the wgmma kernel, which runs behind
  // the split one, its parts of tiles (consumer_floats())
  float* partial_out;
};

// Where the parts of a workspace begin; returns the bytes in front of partial_out.
__host__ __device__ inline size_t view_workspace(const AttentionWorkspace& workspace,
                                                 WorkspaceView* view) {
  char* base = static_cast<char*>(workspace.data);
  size_t at = 0;
  const auto take = [&](size_t bytes) {
    char* part = base + at;
    at += (bytes + 255) / 256 * 256;
    return part;
  };
  const auto seqs = static_cast<size_t>(workspace.max_seqs);
  const auto tokens = static_cast<size_t>(workspace.max_tokens);
  view->header = reinterpret_cast<WorkHeader*>(take(sizeof(WorkHeader)));
  view->workers = reinterpret_cast<WorkerRange*>(take(sizeof(WorkerRange) * kMaxWorkers));
  view->arrivals = reinterpret_cast<uint32_t*>(take(sizeof(uint32_t) * kMaxWorkers));
  view->cuts = reinterpret_cast<CutSegment*>(take(sizeof(CutSegment) * kMaxWorkers));
  view->split = reinterpret_cast<SplitSeq*>(take(sizeof(SplitSeq) * seqs));
  view->tiled = reinterpret_cast<TiledSeq*>(take(sizeof(TiledSeq) * tokens));
  view->empty = reinterpret_cast<EmptySeq*>(take(sizeof(EmptySeq) * seqs));
  view->tiles = reinterpret_cast<TileItem*>(take(sizeof(TileItem) * (tokens + kMaxTileParts)));
  view->part_arrivals = reinterpret_cast<uint32_t*>(take(sizeof(uint32_t) * 2 * kMaxTileParts));
  view->partial_max_sum =
      reinterpret_cast<float2*>(take(sizeof(float2) * 2 * kMaxWorkers * kRowTile));
  view->partial_out = reinterpret_cast<float*>(base + at);
  return at;
}

__host__ __device__ inline int32_t ceil_div(int32_t a, int32_t b) {
  return (a + b - 1) / b;
}

// The first position that a token at `position` sees.
__host__ __device__ inline int32_t first_visible(int32_t position, int32_t window) {
  return window > 0 && position >= window ? position - window + 1 : 0;
}

// The first page that a tile of rows reads, whose first row is at `position` and whose keys come in
// tiles of `pages`.
__host__ __device__ inline int32_t first_page_of(const AttentionConfig& config, int32_t position,
                                                 int32_t pages) {
  const int32_t page = first_visible(position, config.window) / kAttentionBlockSize;
  return config.whole_sequences ? page - page % pages : page;
}

// Heads of which one warp cannot hold 16 rows of sums: a block's warps share the columns
// (attention_wide.cu, attention_wgmma.cu).
__host__ __device__ constexpr bool is_wide(int32_t head_dim) {
  return head_dim > 256;
}

// Blocks of the split kernel on one SM: what its shared memory and registers leave room for.
__host__ __device__ constexpr int32_t split_blocks_per_sm(int32_t head_dim, KvType kv_type) {
  if (kv_type == KvType::kBf16) return head_dim == 256 ? 1 : 2;
  return head_dim == 64 ? 3 : 2;
}
__host__ __device__ inline int32_t split_workers(const AttentionConfig& config) {
  const int32_t workers = config.num_sms * split_blocks_per_sm(config.head_dim, config.kv_type);
  return workers < kMaxWorkers ? workers : kMaxWorkers;
}

// The kernel that kAuto means in a step: chosen by measurement, see
// docs/adr/0008-attention-kernels.md. In batch-invariant mode there is one kernel for any length of
// prompt.
inline PrefillKernel prefill_kernel_of(const AttentionConfig& config,
                                       const AttentionBounds& bounds) {
  if (is_wide(config.head_dim)) return PrefillKernel::kWgmma;         // there is no other
  if (scales_tokens(config.kv_type)) return PrefillKernel::kMmaSync;  // there is no other
  if (config.prefill_kernel != PrefillKernel::kAuto) return config.prefill_kernel;
  constexpr int32_t kMmaRows = 256;
  const int32_t group = config.num_heads / config.num_kv_heads;
  const bool is_short = bounds.max_q_len * group <= kMmaRows && !config.whole_sequences;
  return is_short ? PrefillKernel::kMmaSync : PrefillKernel::kWgmma;
}

__host__ __device__ constexpr int32_t tile_rows(PrefillKernel kernel, int32_t head_dim) {
  return kernel == PrefillKernel::kWgmma && !is_wide(head_dim) ? 128 : 64;
}
__host__ __device__ inline int32_t tile_rows(const AttentionConfig& config) {
  return tile_rows(config.prefill_kernel, config.head_dim);
}
static_assert(kMaxGroup <= 64, "a token's rows lie in one tile");

// May the step's tiles be cut along their keys (attention_tile_list.cuh)? Where whole ones are
// expected to leave multiprocessors without work for more than a twelfth of the time, or a third
// where each has one at most: the code that adds parts up slows the others, by 1 to 7 %. `config`:
// with the kernel of the step.
__host__ __device__ inline bool cuts_tiles(const AttentionConfig& config,
                                           const AttentionBounds& bounds) {
  if (config.whole_sequences || config.prefill_kernel != PrefillKernel::kWgmma) return false;
  const int32_t rows = bounds.num_tokens * (config.num_heads / config.num_kv_heads);
  const int64_t tiles = int64_t{ceil_div(rows, tile_rows(config))} * config.num_kv_heads;
  const int64_t rounds = (tiles + config.num_sms - 1) / config.num_sms;
  const int64_t idle = rounds * config.num_sms - tiles;
  return idle * (rounds > 1 ? 12 : 3) > rounds * config.num_sms;
}

// Pages of keys that a tile of the wgmma kernel goes through at once: a step.
__host__ __device__ constexpr int32_t step_pages(int32_t head_dim) {
  return is_wide(head_dim) ? 2 : head_dim == 256 ? 4 : 8;
}
// What a consumer leaves of a part of a tile, a slot has two of them: sums of 64 rows, as its 128
// threads have them, and four numbers of each thread.
__host__ __device__ constexpr int32_t consumer_floats(int32_t head_dim) {
  const int32_t columns = is_wide(head_dim) ? head_dim / 2 : head_dim == 96 ? 128 : head_dim;
  return 64 * columns + 128 * 4;
}
// How many slots partial_out has room for.
__host__ __device__ constexpr int32_t tile_parts_room(int32_t head_dim) {
  const int32_t room = 2 * kMaxWorkers * kRowTile * head_dim / (2 * consumer_floats(head_dim));
  return room < kMaxTileParts ? room : kMaxTileParts;
}
// What a unit of split work takes a worker, what all of it takes beside, and what 64 keys take a
// tile that is alone, in nanoseconds: of heads of 128 on an H200 and an H100, and of wide ones on
// an H200 (ADR 0008).
inline constexpr int64_t kSplitNs = 5000;
__device__ inline int64_t unit_ns(const AttentionConfig& config) {
  if (is_wide(config.head_dim)) return config.kv_type == KvType::kBf16 ? 1870 : 1010;
  return config.kv_type == KvType::kBf16 ? 450 : 330;
}
__device__ inline int64_t tile_step_ns(const AttentionConfig& config) {
  if (is_wide(config.head_dim)) return 3900;
  if (config.prefill_kernel == PrefillKernel::kMmaSync) return 2050;
  return config.kv_type == KvType::kBf16 ? 860 : 720;
}

// Tiles times KV heads of the step, at most.
inline int32_t tile_items_bound(const AttentionParams& params) {
  const AttentionConfig& config = params.config;
  const AttentionBounds& bounds = params.bounds;
  const int32_t group = config.num_heads / config.num_kv_heads;
  const int32_t tiles = bounds.num_tokens * group / tile_rows(config) + bounds.num_seqs;
  const bool may_have_trees = params.ancestors != nullptr && config.whole_sequences;
  return (may_have_trees ? bounds.num_tokens : tiles) * config.num_kv_heads;
}

// The inputs of a lane and of the one before it are all that the filter needs.
__host__ __device__ inline bool is_near(const GateParams& gate) {
  return gate.length == 2 || gate.length == 3;
}
// Gates that have a short way.
__host__ __device__ inline bool is_usual(const GateParams& gate) {
  return gate.low == 0.0f && is_near(gate);
}
// What makes weights of scores: kernels are instantiated for each. kUsualGate: is_usual(gate).
enum class Weighting { kSoftmax, kUsualGate, kAnyGate };

// Launch<head_dim, KvType, Weighting>::run of the config: the instantiations of an attention
// kernel, of heads that are not wide.
template <template <int, KvType, Weighting> class Launch, KvType kType, Weighting kWeighting>
cudaError_t launch_of_head_dim(const AttentionParams& params, cudaStream_t stream) {
  switch (params.config.head_dim) {
    case 64:
      return Launch<64, kType, kWeighting>::run(params, stream);
    case 96:
      return Launch<96, kType, kWeighting>::run(params, stream);
    case 128:
      return Launch<128, kType, kWeighting>::run(params, stream);
    case 256:
      return Launch<256, kType, kWeighting>::run(params, stream);
    default:
      return cudaErrorInvalidValue;
  }
}
template <template <int, KvType, Weighting> class Launch, Weighting kWeighting>
cudaError_t launch_of_weighting(const AttentionParams& params, cudaStream_t stream) {
  return params.config.kv_type == KvType::kBf16
             ? launch_of_head_dim<Launch, KvType::kBf16, kWeighting>(params, stream)
             : launch_of_head_dim<Launch, KvType::kFp8E4m3, kWeighting>(params, stream);
}
// kTokens: the kernel takes caches whose tokens have scales.
template <template <int, KvType, Weighting> class Launch, bool kTokens = false>
cudaError_t launch_of_config(const AttentionParams& params, cudaStream_t stream) {
  if (scales_tokens(params.config.kv_type)) {
    if constexpr (kTokens) {
      if (params.gate.length > 0) return cudaErrorInvalidValue;
      return params.config.kv_type == KvType::kFp8Tokens
                 ? launch_of_head_dim<Launch, KvType::kFp8Tokens, Weighting::kSoftmax>(params,
                                                                                       stream)
                 : launch_of_head_dim<Launch, KvType::kInt8Tokens, Weighting::kSoftmax>(params,
                                                                                        stream);
    }
    return cudaErrorInvalidValue;
  }
  if (params.gate.length == 0) {
    return launch_of_weighting<Launch, Weighting::kSoftmax>(params, stream);
  }
  return is_usual(params.gate) ? launch_of_weighting<Launch, Weighting::kUsualGate>(params, stream)
                               : launch_of_weighting<Launch, Weighting::kAnyGate>(params, stream);
}

// Of wide heads, which have a softmax alone.
template <template <int, KvType, Weighting> class Launch>
cudaError_t launch_of_wide_config(const AttentionParams& params, cudaStream_t stream) {
  if (params.config.head_dim != 512 || params.gate.length > 0 ||
      scales_tokens(params.config.kv_type)) {
    return cudaErrorInvalidValue;
  }
  return params.config.kv_type == KvType::kBf16
             ? Launch<512, KvType::kBf16, Weighting::kSoftmax>::run(params, stream)
             : Launch<512, KvType::kFp8E4m3, Weighting::kSoftmax>::run(params, stream);
}

cudaError_t launch_attention_split(const AttentionParams& params, cudaStream_t stream);
cudaError_t launch_attention_wide(const AttentionParams& params, cudaStream_t stream);
cudaError_t launch_attention_mma(const AttentionParams& params, cudaStream_t stream);
cudaError_t launch_attention_wgmma(const AttentionParams& params, cudaStream_t stream);

}  // namespace rudder::cuda
