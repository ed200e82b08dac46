// Tiled attention with mma.m16n8k16 (the structure of FlashAttention-2, Dao 2023): a block has 64
// rows (pairs of token and q head) of one KV head, a warp 16 of them, against 64 tokens a step; the
// copy engine brings pages three steps ahead. Serves every head_dim and cache type; the wgmma
// kernel is the fast one.
#include "rudder/cuda/kernels/attention_device.cuh"
#include "rudder/cuda/kernels/attention_weights.cuh"
#include "rudder/cuda/kernels/attention_work.cuh"
#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/tree_path.cuh"

namespace rudder::cuda {
namespace {

constexpr int kRowWarps = 4;  // 16 rows each
constexpr int kRows = kRowWarps * 16;
constexpr int kStages = 3;
static_assert(kRows == tile_rows(PrefillKernel::kMmaSync, 0));

template <int kHeadDim, KvType kType>
struct TiledShared {
  static constexpr int kSlices = is_wide(kHeadDim) ? 2 : 1;  // of the columns, a warp each
  static constexpr int kWarps = kRowWarps * kSlices;
  static constexpr int kThreads = kWarps * 32;
  using P = Page<kHeadDim / kSlices, kType>;              // a warp's columns of a page
  static constexpr int kPages = kHeadDim >= 256 ? 2 : 4;  // of a step
  static constexpr int kPageBytes = kSlices * P::kBytes;  // K or V
  alignas(1024) uint8_t ring[kStages][2][kPages][kPageBytes];
  float4 scores[kSlices > 1 ? kWarps : 1][2 * kPages][32];  // each warp's part
  uint64_t full[kStages];
};

// The tile of this block: pages [first_page, first_page + num_pages) of its sequence.
struct TileWork {
  QueryRows rows;
  int32_t row_begin;
  int32_t kv_len;
  int32_t kv_head;
  const int32_t* table;  // block ids
  int32_t first_page;
  int32_t num_pages;
  TreePath path;  // of wide heads
};

template <int kHeadDim, KvType kType>
__device__ TileWork tile_work(const AttentionParams& p, const WorkspaceView& work, int32_t item) {
  const HeadTile at = head_tile(*work.header, item, p.config.num_kv_heads);
  const TileItem tile = work.tiles[at.tile];
  const TiledSeq seq = work.tiled[tile.entry];
  TileWork t;
  t.kv_head = at.kv_head;
  t.rows = QueryRows::of<kHeadDim>(p.config, seq.q_begin, seq.q_len, seq.kv_len, t.kv_head);
  t.row_begin = tile.tile * kRows;
  t.kv_len = seq.kv_len;
  t.first_page =
      first_page_of(p.config, t.rows.position(t.row_begin), TiledShared<kHeadDim, kType>::kPages);
  t.num_pages = t.rows.position(t.row_begin + kRows - 1) / kPageTokens + 1 - t.first_page;
  t.table = p.block_table + seq.table_row * p.max_blocks;
  t.path = {seq.path, seq.path_base};
  return t;
}

template <int kHeadDim, KvType kType, Weighting kWeighting>
class TiledBlock {
 public:
  using Weights = typename WeightsOf<kWeighting>::Type;
  using Shared = TiledShared<kHeadDim, kType>;
  using P = typename Shared::P;
  static constexpr int kPages = Shared::kPages;
  static constexpr bool kWide = Shared::kSlices > 1;

  __device__ TiledBlock(const AttentionParams& params, Shared& shared, const TileWork& tile)
      : p_(params),
        shared_(shared),
        tile_(tile),
        warp_(static_cast<int32_t>(threadIdx.x / 32)),
        lane_(static_cast<int32_t>(threadIdx.x % 32)),
        slice_(warp_ / kRowWarps) {}

  __device__ void run() {
    const int32_t steps = ceil_div(tile_.num_pages, kPages);
    for (int32_t step = 0; step < kStages; ++step) send(step, step);
    const int32_t row = tile_.row_begin + warp_ % kRowWarps * 16 + lane_ / 4;
    const QueryRows& rows = tile_.rows;
    uint32_t q[P::kSteps][4];
    const auto* q_rows = static_cast<const __nv_bfloat16*>(p_.q) + first_column();
    P::load_q(q, row < rows.count ? q_rows + rows.offset<kHeadDim>(row) : nullptr,
              row + 8 < rows.count ? q_rows + rows.offset<kHeadDim>(row + 8) : nullptr, lane_ % 4);
    const Sight sight(rows, row, rows.position(tile_.row_begin),
                      rows.position(tile_.row_begin + kRows - 1), p_.config.window);
    float out[P::kOutTiles][4] = {};
    Weights weights(p_, rows, tile_.kv_head, row);
    int32_t stage = 0;
    uint32_t phase = 0;
    for (int32_t step = 0; step < steps; ++step) {
      barrier_wait(shared_address(&shared_.full[stage]), phase);
      attend(step, stage, q, sight, weights, out);
      __syncthreads();  // the stage is free
      send(step + kStages, stage);
      if (++stage == kStages) {
        stage = 0;
        phase ^= 1;
      }
    }
    weights.settle(out);
    write(row, weights, out);
  }

 private:
  // Of this warp in a head.
  __device__ int32_t first_column() const { return slice_ * (kHeadDim / Shared::kSlices); }

  // Warp 0, a lane a page.
  __device__ void send(int32_t step, int32_t stage) {
    const int32_t left = tile_.num_pages - step * kPages;
    if (warp_ != 0 || left <= 0) return;
    const int32_t first = tile_.first_page + step * kPages;
    const int32_t count = min(kPages, left);
    int32_t whole = count;  // that lie in the cache as the tile has them
    if constexpr (kWide) {
      if (tile_.path.tokens != 0) {
        whole = max(0, min(tile_.path.base / kPageTokens - first, count));
        gather(stage, first, whole, count);
      }
    }
    const uint32_t full = shared_address(&shared_.full[stage]);
    if (lane_ == 0) barrier_expect(full, static_cast<uint32_t>(whole) * 2 * Shared::kPageBytes);
    __syncwarp();
    if (lane_ < whole) {
      copy_page<Page<kHeadDim, kType>>(&p_.kv, p_.config.num_kv_heads, tile_.kv_head,
                                       tile_.table[first + lane_],
                                       shared_address(shared_.ring[stage][0][lane_]),
                                       shared_address(shared_.ring[stage][1][lane_]), full);
    }
  }

  // The rows of the pages [whole, count) of a step whose first one is `first`, each from where its
  // token lies. Whatever was at the end of the last page stays there.
  __device__ void gather(int32_t stage, int32_t first, int32_t whole, int32_t count) const {
    using Whole = Page<kHeadDim, kType>;
    const int32_t begin = (first + whole) * kPageTokens;
    const int32_t end = min((first + count) * kPageTokens, tile_.kv_len);
#pragma unroll 1
    for (int32_t at = lane_; at < (end - begin) * Whole::kChunks; at += 32) {
      const int32_t token = at / Whole::kChunks;
      const int32_t chunk = at % Whole::kChunks;
      const int32_t offset = tile_.path.offset_of(begin + token);
      const int32_t page = whole + token / kPageTokens;
      const int32_t row = token % kPageTokens;
#pragma unroll
      for (int is_v = 0; is_v < 2; ++is_v) {
        const int64_t part =
            (tile_.table[offset / kPageTokens] * 2 + is_v) * p_.config.num_kv_heads;
        const auto* const from =
            static_cast<const uint8_t*>(p_.kv_storage) +
            ((part + tile_.kv_head) * kPageTokens + offset % kPageTokens) * Whole::kRowBytes;
        store_shared(shared_address(shared_.ring[stage][is_v][page]) +
                         chunk / 8 * Whole::kGroupBytes + row * 128 +
                         (((chunk % 8) ^ (row % 8)) << 4),
                     reinterpret_cast<const uint4*>(from)[chunk]);
      }
    }
    fence_async_proxy();  // the copy engine is the next to write there
    __syncwarp();         // what is gathered is there before the warp says so
  }

  __device__ void attend(int32_t step, int32_t stage, const uint32_t (&q)[P::kSteps][4],
                         const Sight& sight, Weights& weigher, float (&out)[P::kOutTiles][4]) {
    const int32_t begin = (tile_.first_page + step * kPages) * kPageTokens;
    const int32_t count = min(kPages, tile_.num_pages - step * kPages);
    float s[2 * kPages][4];
#pragma unroll
    for (int page = 0; page < kPages; ++page) {
      float part[2][4] = {};
      if (page < count) P::scores(part, q, columns_of(stage, 0, page), lane_);
#pragma unroll
      for (int i = 0; i < 8; ++i) s[2 * page + i / 4][i % 4] = part[i / 4][i % 4];
    }
    if constexpr (kWide) add_up_scores(s);
    // Tokens past the rows' last ones also cover pages that were not copied.
    weigher.weigh(s, out, begin, sight, lane_);
#pragma unroll
    for (int page = 0; page < kPages; ++page) {
      if (page >= count) continue;
      uint32_t weights[4];
      P::pack_weights(weights, s, page);
      const uint32_t values = columns_of(stage, 1, page);
      const int32_t tokens = tile_.kv_len - begin - page * kPageTokens;
      if (tokens < kPageTokens) {
        P::template add_values<true>(out, weights, values, tokens, lane_);
      } else {
        P::template add_values<false>(out, weights, values, tokens, lane_);
      }
    }
  }

  // This warp's columns of K (0) or V (1) of a page.
  __device__ uint32_t columns_of(int32_t stage, int32_t is_v, int32_t page) const {
    return shared_address(shared_.ring[stage][is_v][page]) + slice_ * P::kBytes;
  }

  // Of the warps that share rows, in their order, so that each has the same bits. A step has one
  // place for them: the barrier at its end keeps the next one's away.
  __device__ void add_up_scores(float (&s)[2 * kPages][4]) {
#pragma unroll
    for (int n = 0; n < 2 * kPages; ++n) {
      shared_.scores[warp_][n][lane_] = make_float4(s[n][0], s[n][1], s[n][2], s[n][3]);
    }
    const int32_t first = warp_ % kRowWarps;
    asm volatile("bar.sync %0, %1;" ::"r"(1 + first), "n"(Shared::kSlices * 32) : "memory");
#pragma unroll
    for (int n = 0; n < 2 * kPages; ++n) {
      const float4 low = shared_.scores[first][n][lane_];
      const float4 high = shared_.scores[first + kRowWarps][n][lane_];
      s[n][0] = low.x + high.x;
      s[n][1] = low.y + high.y;
      s[n][2] = low.z + high.z;
      s[n][3] = low.w + high.w;
    }
  }

  __device__ void write(int32_t row, const Weights& weights, const float (&out)[P::kOutTiles][4]) {
    const float v_scale = p_.v_scale != nullptr ? p_.v_scale[tile_.kv_head] : 1.0f;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t r = row + 8 * half;
      const int32_t head = tile_.rows.head(r, tile_.kv_head);
      const float over = weights.over(half, Weights::scale_of(p_, v_scale, head));
      if (r >= tile_.rows.count) continue;
      P::write_row(
          static_cast<__nv_bfloat16*>(p_.out) + tile_.rows.offset<kHeadDim>(r) + first_column(),
          out, half, over, lane_ % 4);
    }
  }

  const AttentionParams& p_;
  Shared& shared_;
  const TileWork& tile_;
  const int32_t warp_;
  const int32_t lane_;
  const int32_t slice_;
};

template <int kHeadDim, KvType kType, Weighting kWeighting>
__global__ void __launch_bounds__(TiledShared<kHeadDim, kType>::kThreads, kHeadDim >= 256 ? 1 : 2)
    tiled_kernel(const __grid_constant__ AttentionParams p) {
  extern __shared__ __align__(1024) uint8_t raw[];
  auto& shared = *reinterpret_cast<TiledShared<kHeadDim, kType>*>(raw);
  if (threadIdx.x == 0) {
    prefetch_map(p.kv.box);
    for (uint64_t& barrier : shared.full) barrier_init(shared_address(&barrier), 1);
    barrier_init_fence();
  }
  __syncthreads();
  dependency_wait();
  dependency_trigger();
  WorkspaceView work;
  view_workspace(p.workspace, &work);
  const auto item = static_cast<int32_t>(blockIdx.x);
  if (item >= work.header->num_tiles * p.config.num_kv_heads) return;
  const TileWork tile = tile_work<kHeadDim, kType>(p, work, item);
  TiledBlock<kHeadDim, kType, kWeighting>(p, shared, tile).run();
}

template <int kHeadDim, KvType kType, Weighting kWeighting>
struct Launch {
  static cudaError_t run(const AttentionParams& params, cudaStream_t stream) {
    using Shared = TiledShared<kHeadDim, kType>;
    constexpr size_t kShared = sizeof(Shared);
    static_assert(kShared <= 227 * 1024);
    const cudaError_t error =
        cudaFuncSetAttribute(tiled_kernel<kHeadDim, kType, kWeighting>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
    if (error != cudaSuccess) return error;
    const auto blocks = static_cast<unsigned>(tile_items_bound(params));
    return launch_pdl(tiled_kernel<kHeadDim, kType, kWeighting>, dim3(blocks),
                      dim3(Shared::kThreads), kShared, stream, params);
  }
};

}  // namespace

cudaError_t launch_attention_mma(const AttentionParams& params, cudaStream_t stream) {
  return is_wide(params.config.head_dim) ? launch_of_wide_config<Launch>(params, stream)
                                         : launch_of_config<Launch>(params, stream);
}

}  // namespace rudder::cuda
