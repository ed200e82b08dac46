// Tiled attention with mma.m16n8k16 (the structure of FlashAttention-2, Dao 2023): a block has 64
// rows (pairs of token and q head) of one KV head, a warp 16 of them, against 64 tokens a step; the
// copy engine brings pages three steps ahead. Serves every head_dim and cache type; the wgmma
// kernel is the fast one.
#include "rudder/cuda/kernels/attention/attention_device.cuh"
#include "rudder/cuda/kernels/attention/attention_weights.cuh"
#include "rudder/cuda/kernels/attention/attention_work.cuh"
#include "rudder/cuda/kernels/launch.h"

namespace rudder::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kRows = kWarps * 16;
constexpr int kStages = 3;
static_assert(kRows == tile_rows(PrefillKernel::kMmaSync, 0));

template <int kHeadDim, KvType kType>
struct TiledShared {
  using P = Page<kHeadDim, kType>;
  static constexpr int kPages = kHeadDim == 256 ? 2 : 4;  // of a step
  alignas(1024) uint8_t ring[kStages][2][kPages][P::kBytes];
  uint64_t full[kStages];
  alignas(16) PageScales scales[kStages][scales_tokens(kType) ? kPages : 1];
};

// The tile of this block: pages [first_page, first_page + num_pages) of its sequence.
struct TileWork {
  QueryRows rows;
  int32_t row_begin;
  int32_t kv_len;
  int32_t kv_head;
  const int32_t* pages;  // block ids from first_page on
  int32_t first_page;
  int32_t num_pages;
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
  t.pages = p.block_table + seq.table_row * p.max_blocks + t.first_page;
  return t;
}

template <int kHeadDim, KvType kType, Weighting kWeighting>
class TiledBlock {
 public:
  using Weights = typename WeightsOf<kWeighting>::Type;
  using P = Page<kHeadDim, kType>;
  using Shared = TiledShared<kHeadDim, kType>;
  static constexpr int kPages = Shared::kPages;
  static constexpr bool kScalesTokens = scales_tokens(kType);

  __device__ TiledBlock(const AttentionParams& params, Shared& shared, const TileWork& tile)
      : p_(params),
        shared_(shared),
        tile_(tile),
        warp_(static_cast<int32_t>(threadIdx.x / 32)),
        lane_(static_cast<int32_t>(threadIdx.x % 32)) {}

  __device__ void run() {
    const int32_t steps = ceil_div(tile_.num_pages, kPages);
    for (int32_t step = 0; step < kStages; ++step) send(step, step);
    const int32_t row = tile_.row_begin + warp_ * 16 + lane_ / 4;
    const QueryRows& rows = tile_.rows;
    uint32_t q[P::kSteps][4];
    const auto* q_rows = static_cast<const __nv_bfloat16*>(p_.q);
    P::load_q(q, row < rows.count ? q_rows + rows.offset<kHeadDim>(row) : nullptr,
              row + 8 < rows.count ? q_rows + rows.offset<kHeadDim>(row + 8) : nullptr, lane_ % 4);
    const Sight sight(rows, row, row + 8, rows.position(tile_.row_begin),
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
  // Warp 0, a lane a page.
  __device__ void send(int32_t step, int32_t stage) {
    const int32_t left = tile_.num_pages - step * kPages;
    if (warp_ != 0 || left <= 0) return;
    const int32_t count = min(kPages, left);
    const uint32_t full = shared_address(&shared_.full[stage]);
    constexpr uint32_t kBytes = 2 * P::kBytes + (kScalesTokens ? sizeof(PageScales) : 0);
    if (lane_ == 0) barrier_expect(full, static_cast<uint32_t>(count) * kBytes);
    __syncwarp();
    if (lane_ < count) {
      const int32_t block = tile_.pages[step * kPages + lane_];
      if constexpr (kScalesTokens) {
        copy_scales(shared_.scales[stage][lane_], p_, tile_.kv_head, block, full);
      }
      copy_page<P>(&p_.kv, p_.config.num_kv_heads, tile_.kv_head, block,
                   shared_address(shared_.ring[stage][0][lane_]),
                   shared_address(shared_.ring[stage][1][lane_]), full);
    }
  }

  __device__ void attend(int32_t step, int32_t stage, const uint32_t (&q)[P::kSteps][4],
                         const Sight& sight, Weights& weigher, float (&out)[P::kOutTiles][4]) {
    const int32_t begin = (tile_.first_page + step * kPages) * kPageTokens;
    const int32_t count = min(kPages, tile_.num_pages - step * kPages);
    float s[2 * kPages][4];
#pragma unroll
    for (int page = 0; page < kPages; ++page) {
      float part[2][4] = {};
      if (page < count) {
        P::scores(part, q, shared_address(shared_.ring[stage][0][page]), lane_);
        if constexpr (kScalesTokens) P::scale_keys(part, shared_.scales[stage][page], lane_);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) s[2 * page + i / 4][i % 4] = part[i / 4][i % 4];
    }
    // Tokens past the rows' last ones also cover pages that were not copied.
    weigher.weigh(s, out, begin, sight, lane_);
#pragma unroll
    for (int page = 0; page < kPages; ++page) {
      if (page >= count) continue;
      const int32_t tokens = tile_.kv_len - begin - page * kPageTokens;
      if constexpr (kScalesTokens) {
        P::scale_values(s, page, shared_.scales[stage][page], tokens, lane_);
      }
      uint32_t weights[4];
      P::pack_weights(weights, s, page);
      const uint32_t values = shared_address(shared_.ring[stage][1][page]);
      if (tokens < kPageTokens) {
        P::template add_values<true>(out, weights, values, tokens, lane_);
      } else {
        P::template add_values<false>(out, weights, values, tokens, lane_);
      }
    }
  }

  __device__ void write(int32_t row, const Weights& weights, const float (&out)[P::kOutTiles][4]) {
    const float v_scale = value_scale_of<kType>(p_, tile_.kv_head);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t r = row + 8 * half;
      const int32_t head = tile_.rows.head(r, tile_.kv_head);
      const float over = weights.over(half, Weights::end_of(p_, v_scale, head));
      if (r >= tile_.rows.count) continue;
      P::write_row(static_cast<__nv_bfloat16*>(p_.out) + tile_.rows.offset<kHeadDim>(r), out, half,
                   over, lane_);
    }
  }

  const AttentionParams& p_;
  Shared& shared_;
  const TileWork& tile_;
  const int32_t warp_;
  const int32_t lane_;
};

template <int kHeadDim, KvType kType, Weighting kWeighting>
__global__ void __launch_bounds__(kThreads, kHeadDim == 256 ? 1 : 2)
    tiled_kernel(const __grid_constant__ AttentionParams p) {
  extern __shared__ __align__(1024) uint8_t raw[];
  auto& shared = *reinterpret_cast<TiledShared<kHeadDim, kType>*>(raw);
  if (threadIdx.x == 0) {
    prefetch_map(p.kv.packed);
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
    constexpr size_t kShared = sizeof(TiledShared<kHeadDim, kType>);
    const cudaError_t error =
        cudaFuncSetAttribute(tiled_kernel<kHeadDim, kType, kWeighting>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
    if (error != cudaSuccess) return error;
    const auto blocks = static_cast<unsigned>(tile_items_bound(params));
    return launch_pdl(tiled_kernel<kHeadDim, kType, kWeighting>, dim3(blocks), dim3(kThreads),
                      kShared, stream, params);
  }
};

}  // namespace

cudaError_t launch_attention_mma(const AttentionParams& params, cudaStream_t stream) {
  return launch_of_config<Launch, true>(params, stream);
}

}  // namespace rudder::cuda
