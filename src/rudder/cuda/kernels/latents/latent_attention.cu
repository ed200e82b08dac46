// Rows of queries over tiles of keys, in two stages of shared memory, which the copy engine fills
// row by row. Warps divide q . k by rows, halves of a row's elements and keys; partial scores meet
// in shared memory, where threads make weights of them; of the values each warp sums up its own
// columns for all rows. Queries and sums stay in registers over an item's tiles. Up to 32 rows take
// four warps, and two blocks of a multiprocessor fill each other's waits; 64 rows take eight warps,
// and two tiles of keys between barriers.
//
// A row's bits depend on its tile's form (row_tile) nowhere: products take it alone, in the order
// of elements and keys, and a row's weights are summed up in one order whoever has them.
#include <cuda_bf16.h>

#include "rudder/cuda/kernels/attention/attention_device.cuh"
#include "rudder/cuda/kernels/latents/latent_attention.h"
#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/tree_path.cuh"

namespace rudder::cuda {
namespace {

constexpr int kStages = 2;
constexpr int kCopiedRows = 8;  // that a warp sends for

template <int kRank, int kRope, int kRowTile>
struct LatentForm {
  static constexpr int kRow = kRank + kRope;
  static constexpr int kWarps = kRowTile == 64 ? 8 : 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kBlocksPerSm = latent_blocks(kRowTile, 1);
  static constexpr int kKeys = kWarps * kCopiedRows;    // of a stage
  static constexpr int kTiles = kKeys / kLatentTokens;  // likewise
  static constexpr int kPitch = kRow * 2 + 16;          // bytes: eight rows' chunks in all banks
  static constexpr int kScorePitch = kKeys + 8;         // floats: rows in different banks
  static constexpr int kWeightPitch = kKeys + 8;        // bf16: likewise, of 16 bytes
  static_assert(kKeys % kLatentTokens == 0);
};

template <int kRank, int kRope, int kRowTile>
struct LatentShared {
  using Form = LatentForm<kRank, kRope, kRowTile>;
  alignas(128) uint8_t keys[kStages][Form::kKeys * Form::kPitch];
  float scores[2][kRowTile][Form::kScorePitch];  // of the halves of a row
  alignas(16) __nv_bfloat16 weights[kRowTile][Form::kWeightPitch];
  float factor[Form::kTiles][kRowTile];  // of the sums in front of the tile
  float2 max_sum[kRowTile];
  uint64_t full[kStages];
};

// An item (latent_plan.h).
struct LatentItem {
  LatentSeq seq;
  LatentRows rows;
  TreePath path;  // of its one token, where tokens have paths
  int32_t begin = 0;
  int32_t end = 0;    // tiles of keys [begin, end)
  int32_t keys = 0;   // that its last row sees
  int32_t part = -1;  // where its sums go; -1: it has all keys

  __device__ LatentItem(const LatentAttentionParams& p, const LatentPlan& plan, int32_t item,
                        int32_t row_tile) {
    int32_t low = 0;
    int32_t high = plan.num_seqs;
    while (high - low > 1) {
      const int32_t mid = (low + high) / 2;
      (plan.seqs()[mid].first_item <= item ? low : high) = mid;
    }
    seq = plan.seqs()[low];
    const bool by_token = p.ancestors != nullptr;
    const int32_t heads = p.config.num_heads;
    // Neighbours read the same keys; of a prompt the tiles with most of them come first.
    const int32_t local = item - seq.first_item;
    const int32_t tile = seq.row_tiles - 1 - local % seq.row_tiles;
    const int32_t chunk = local / seq.row_tiles;
    rows = latent_rows(tile, seq.q_len, heads, row_tile, by_token);
    const int32_t last = (rows.first + rows.count - 1) / heads;
    keys = seq.base() + last + 1;
    if (by_token) {
      path = {p.ancestors[seq.q_begin + last], seq.base()};
      if (path.tokens != 0) keys = path.end();
    }
    if (seq.kv_len == 0) keys = 0;
    begin = chunk * plan.chunk;
    end = min(begin + plan.chunk, latent_tiles(keys, kLatentTokens));
    if (seq.chunks > 1) part = seq.first_part + tile * seq.chunks + chunk;
  }

  // Keys up to the item's end that a row of the tile sees.
  __device__ int32_t seen_by(int32_t row, int32_t heads) const {
    const int32_t most = min(keys, end * kLatentTokens);
    if (path.tokens != 0) return most;
    return min(most, seq.base() + (rows.first + min(row, rows.count - 1)) / heads + 1);
  }
};

template <int kRank, int kRope, int kRowTile>
class LatentBlock {
 public:
  using Form = LatentForm<kRank, kRope, kRowTile>;
  using Shared = LatentShared<kRank, kRope, kRowTile>;
  static constexpr int kRow = Form::kRow;
  static constexpr int kRowParts = kRowTile / 16;                 // of 16 rows, in q . k
  static constexpr int kKeyParts = Form::kWarps / 2 / kRowParts;  // likewise of keys
  static constexpr int kPartKeys = Form::kKeys / kKeyParts;
  static constexpr int kSteps = kRow / 2 / 16;              // of a half of a row
  static constexpr int kColumns = kRank / Form::kWarps;     // of values of a warp
  static constexpr int kOfRow = Form::kThreads / kRowTile;  // threads that have a row's weights
  static_assert(kRow % 32 == 0 && kColumns % 16 == 0 && kPartKeys % 16 == 0);

  __device__ LatentBlock(const LatentAttentionParams& params, Shared& shared)
      : p_(params),
        shared_(shared),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  // Sends for the first keys of the item that run() takes first, where this step writes none of
  // them.
  __device__ void start(const LatentItem& item) {
    if (item.begin * kLatentTokens + Form::kKeys > min(item.seq.base(), item.keys)) return;
    if (item.begin >= item.end) return;
    send_first(item);
    has_started_ = true;
  }

  __device__ void run(const LatentItem& item) {
    row_max_ = minus_infinity();
    row_sum_ = 0;
#pragma unroll
    for (int m = 0; m < kRowParts; ++m) {
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
        for (float& sum : sums_[m][j]) sum = 0;
      }
    }
    __syncthreads();  // the last item's sums have been read
    if (item.begin < item.end) {
      if (!has_started_) send_first(item);
      has_started_ = false;
      load_queries(item);
    }
#pragma unroll 1
    for (int32_t tile = item.begin; tile < item.end; tile += Form::kTiles) {
      const uint32_t keys = shared_address(shared_.keys[received_ % kStages]);
      barrier_wait(shared_address(&shared_.full[received_ % kStages]), received_ / kStages % 2);
      ++received_;
      __syncthreads();  // all have read the keys before these
      if (tile + Form::kTiles < item.end) send(item, tile + Form::kTiles);
      score(keys);
      __syncthreads();
      weigh(item, tile);
      __syncthreads();
      add_values(keys);
    }
    finish(item);
  }

 private:
  // Where the key lies that lane r < 8 names for its warp; behind the last key that one again,
  // which no row weighs.
  __device__ const uint8_t* row_of(const LatentItem& item, int32_t tile) const {
    const int32_t key = tile * kLatentTokens + warp_ * kCopiedRows + lane_ % kCopiedRows;
    const int32_t at = item.path.offset_of(min(key, item.keys - 1));
    const int64_t block = blocks_[at / p_.block_size];
    return static_cast<const uint8_t*>(p_.kv) +
           (block * p_.block_size + at % p_.block_size) * (kRow * 2);
  }

  __device__ void send_first(const LatentItem& item) {
    blocks_ = p_.block_table + item.seq.table_row * p_.max_blocks;
    from_ = row_of(item, item.begin);
    send(item, item.begin);
  }

  // Sends for the keys of a stage, whose rows from_ has, and looks up those of the next one.
  __device__ void send(const LatentItem& item, int32_t tile) {
    const uint32_t barrier = shared_address(&shared_.full[sent_ % kStages]);
    const uint32_t to = shared_address(shared_.keys[sent_ % kStages]) +
                        (warp_ * kCopiedRows + lane_) * Form::kPitch;
    ++sent_;
    if (threadIdx.x == 0) barrier_expect(barrier, Form::kKeys * kRow * 2);
    if (lane_ < kCopiedRows) copy_bytes(to, from_, kRow * 2, barrier);
    if (tile + Form::kTiles < item.end) from_ = row_of(item, tile + Form::kTiles);
  }

  // The warp's 16 rows and half of elements, as operands of mma.
  __device__ void load_queries(const LatentItem& item) {
    const int64_t first = int64_t{item.seq.q_begin} * p_.config.num_heads + item.rows.first;
    const auto* const q = static_cast<const __nv_bfloat16*>(p_.q) + first * kRow;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_part() * 16 + half * 8 + lane_ / 4;
      const bool is_there = row < item.rows.count;
      const auto* const words = reinterpret_cast<const uint32_t*>(
          q + int64_t{is_there ? row : 0} * kRow + element_half() * (kRow / 2) + lane_ % 4 * 2);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        queries_[step][half] = is_there ? words[step * 8] : 0;
        queries_[step][2 + half] = is_there ? words[step * 8 + 4] : 0;
      }
    }
  }

  // Of a tile the scores of the warp's rows and keys over its half of elements.
  __device__ void score(uint32_t keys) {
    float scores[kPartKeys / 8][4] = {};
    const uint32_t from = keys +
                          (key_part() * kPartKeys + lane_ / 16 * 8 + lane_ % 8) * Form::kPitch +
                          element_half() * kRow + lane_ / 8 % 2 * 16;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int n = 0; n < kPartKeys / 16; ++n) {
        uint32_t b[4];
        load_matrices(b, from + n * 16 * Form::kPitch + step * 32);
        mma<false>(scores[2 * n], queries_[step], b[0], b[1]);
        mma<false>(scores[2 * n + 1], queries_[step], b[2], b[3]);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* const to = &shared_.scores[element_half()][row_part() * 16 + half * 8 + lane_ / 4]
                                       [key_part() * kPartKeys + lane_ % 4 * 2];
#pragma unroll
      for (int j = 0; j < kPartKeys / 8; ++j) {
        *reinterpret_cast<float2*>(to + j * 8) =
            make_float2(scores[j][2 * half], scores[j][2 * half + 1]);
      }
    }
  }

  // Weights of the tiles of a stage relative to the largest score so far. A row's sum adds up 16
  // sums of every 16th key, in the same order however many threads have them.
  __device__ void weigh(const LatentItem& item, int32_t tile) {
    constexpr int kEach = 16 / kOfRow;  // of the 16 sums
    const int row = static_cast<int>(threadIdx.x) / kOfRow;
    const int first = static_cast<int>(threadIdx.x) % kOfRow;
    const int32_t seen = item.seen_by(row, p_.config.num_heads) - tile * kLatentTokens;
    const float scale = p_.scale * kLog2E;
#pragma unroll
    for (int t = 0; t < Form::kTiles; ++t) {
      float x[kEach][2];
      float largest = row_max_;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int key = t * kLatentTokens + first + i * kOfRow + j * 16;
          const float score = (shared_.scores[0][row][key] + shared_.scores[1][row][key]) * scale;
          x[i][j] = key < seen ? score : minus_infinity();
          largest = fmaxf(largest, x[i][j]);
        }
      }
#pragma unroll
      for (int step = kOfRow / 2; step > 0; step /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
      }
      const float shift = largest == minus_infinity() ? 0.0f : largest;
      float sums[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const float low = exp2_fast(x[i][0] - shift);
        const float high = exp2_fast(x[i][1] - shift);
        sums[i] = low + high;
        __nv_bfloat16* const to = &shared_.weights[row][t * kLatentTokens + first + i * kOfRow];
        to[0] = __float2bfloat16_rn(low);
        to[16] = __float2bfloat16_rn(high);
      }
      // As 16 threads would: those 8 apart first.
#pragma unroll
      for (int apart = kEach / 2; apart > 0; apart /= 2) {
#pragma unroll
        for (int i = 0; i < apart; ++i) sums[i] += sums[i + apart];
      }
      float sum = sums[0];
#pragma unroll
      for (int step = kOfRow / 2; step > 0; step /= 2) {
        sum += __shfl_xor_sync(kAllLanes, sum, step);
      }
      const float factor = exp2_fast(row_max_ - shift);
      row_sum_ = row_sum_ * factor + sum;
      row_max_ = largest;
      if (first == 0) shared_.factor[t][row] = factor;
    }
  }

  // The warp's columns of a tile's values, for all rows.
  __device__ void add_values(uint32_t keys) {
    const uint32_t weights = shared_address(shared_.weights) +
                             (lane_ / 8 % 2 * 8 + lane_ % 8) * (Form::kWeightPitch * 2) +
                             lane_ / 16 * 16;
    const uint32_t values = keys + (lane_ / 8 % 2 * 8 + lane_ % 8) * Form::kPitch +
                            (warp_ * kColumns + lane_ / 16 * 8) * 2;
#pragma unroll
    for (int t = 0; t < Form::kTiles; ++t) {
      scale_sums(t);
#pragma unroll
      for (int k = t * kLatentTokens / 16; k < (t + 1) * kLatentTokens / 16; ++k) {
        uint32_t a[kRowParts][4];
#pragma unroll
        for (int m = 0; m < kRowParts; ++m) {
          load_matrices(a[m], weights + m * 16 * (Form::kWeightPitch * 2) + k * 32);
        }
#pragma unroll
        for (int n = 0; n < kColumns / 16; ++n) {
          uint32_t b[4];
          load_matrices_transposed(b, values + k * 16 * Form::kPitch + n * 32);
#pragma unroll
          for (int m = 0; m < kRowParts; ++m) {
            mma<false>(sums_[m][2 * n], a[m], b[0], b[1]);
            mma<false>(sums_[m][2 * n + 1], a[m], b[2], b[3]);
          }
        }
      }
    }
  }

  __device__ void scale_sums(int tile) {
#pragma unroll
    for (int m = 0; m < kRowParts; ++m) {
      const float low = shared_.factor[tile][m * 16 + lane_ / 4];
      const float high = shared_.factor[tile][m * 16 + 8 + lane_ / 4];
      if (!__any_sync(kAllLanes, low != 1.0f || high != 1.0f)) continue;
#pragma unroll
      for (float(&sum)[4] : sums_[m]) {
        sum[0] *= low;
        sum[1] *= low;
        sum[2] *= high;
        sum[3] *= high;
      }
    }
  }

  __device__ void finish(const LatentItem& item) {
    const int row = static_cast<int>(threadIdx.x) / kOfRow;
    if (static_cast<int>(threadIdx.x) % kOfRow == 0) {
      shared_.max_sum[row] = make_float2(row_max_, row_sum_);
    }
    __syncthreads();
    const LatentPart part = latent_part(p_, kRowTile, max(item.part, 0));
    if (item.part >= 0 && threadIdx.x < kRowTile) {
      part.max_sum[threadIdx.x] = shared_.max_sum[threadIdx.x];
    }
    const int64_t first = int64_t{item.seq.q_begin} * p_.config.num_heads + item.rows.first;
    const int column = warp_ * kColumns + lane_ % 4 * 2;
#pragma unroll
    for (int m = 0; m < kRowParts; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = m * 16 + half * 8 + lane_ / 4;
        if (r >= item.rows.count) continue;
        const float over = latent_share(p_, item.rows.first + r, shared_.max_sum[r]);
        auto* const out = static_cast<__nv_bfloat16*>(p_.out) + (first + r) * kRow + column;
        float* const values = part.values + r * kRank + column;
#pragma unroll
        for (int j = 0; j < kColumns / 8; ++j) {
          const float x = sums_[m][j][2 * half];
          const float y = sums_[m][j][2 * half + 1];
          if (item.part >= 0) {
            *reinterpret_cast<float2*>(values + j * 8) = make_float2(x, y);
          } else {
            *reinterpret_cast<uint32_t*>(out + j * 8) = pack_bf16(x * over, y * over);
          }
        }
      }
    }
  }

  __device__ int row_part() const {
    return warp_ % kRowParts;
  }
  __device__ int element_half() const {
    return warp_ / kRowParts % 2;
  }
  __device__ int key_part() const {
    return warp_ / kRowParts / 2;
  }

  const LatentAttentionParams& p_;
  Shared& shared_;
  const int warp_;
  const int lane_;
  const int32_t* blocks_ = nullptr;
  const uint8_t* from_ = nullptr;  // row_of() of what is sent for next
  uint32_t sent_ = 0;              // stages
  uint32_t received_ = 0;
  bool has_started_ = false;
  uint32_t queries_[kSteps][4];
  float sums_[kRowParts][kColumns / 8][4];
  float row_max_ = 0;  // of the row whose weights the thread makes, in powers of two
  float row_sum_ = 0;
};

template <int kRank, int kRope, int kRowTile>
__global__ void __launch_bounds__(LatentForm<kRank, kRope, kRowTile>::kThreads,
                                  LatentForm<kRank, kRope, kRowTile>::kBlocksPerSm)
    latent_attention_kernel(const __grid_constant__ LatentAttentionParams p) {
  extern __shared__ __align__(128) uint8_t raw[];
  auto& shared = *reinterpret_cast<LatentShared<kRank, kRope, kRowTile>*>(raw);
  if (threadIdx.x == 0) {
    for (uint64_t& barrier : shared.full) barrier_init(shared_address(&barrier), 1);
    barrier_init_fence();
  }
  __syncthreads();
  if (!p.reads_ahead) dependency_wait();
  const auto& plan = *static_cast<const LatentPlan*>(p.workspace);
  LatentBlock<kRank, kRope, kRowTile> block(p, shared);
  auto item = static_cast<int32_t>(blockIdx.x);
  if (p.reads_ahead) {
    if (item < plan.num_items) block.start(LatentItem(p, plan, item, kRowTile));
    dependency_wait();
  }
  dependency_trigger();
#pragma unroll 1
  for (; item < plan.num_items; item += static_cast<int32_t>(gridDim.x)) {
    block.run(LatentItem(p, plan, item, kRowTile));
  }
}

template <int kRank, int kRope, int kRowTile>
cudaError_t launch(const LatentAttentionParams& params, cudaStream_t stream) {
  using Form = LatentForm<kRank, kRope, kRowTile>;
  constexpr size_t kShared = sizeof(LatentShared<kRank, kRope, kRowTile>);
  static_assert((kShared + 1024) * Form::kBlocksPerSm <= 228 * 1024);
  const auto kernel = latent_attention_kernel<kRank, kRope, kRowTile>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  if (error != cudaSuccess) return error;
  const int32_t blocks = latent_blocks(kRowTile, params.config.num_sms);
  return launch_pdl(kernel, dim3(static_cast<unsigned>(blocks)), dim3(Form::kThreads), kShared,
                    stream, params);
}

template <int kRank, int kRope>
cudaError_t launch_rows(const LatentAttentionParams& params, cudaStream_t stream) {
  switch (latent_row_tile_of(params)) {
    case 16:
      return launch<kRank, kRope, 16>(params, stream);
    case 32:
      return launch<kRank, kRope, 32>(params, stream);
    default:
      return launch<kRank, kRope, 64>(params, stream);
  }
}

}  // namespace

cudaError_t launch_latent_attention(const LatentAttentionParams& params, cudaStream_t stream) {
  if (params.bounds.num_tokens <= 0) return cudaSuccess;
  if (!has_latent_attention(params.config.row, params.config.rank)) return cudaErrorInvalidValue;
  const auto launch_row = [&] {
    if (params.config.rank != 512) return launch_rows<256, 64>(params, stream);
    return params.config.row == 512 ? launch_rows<512, 0>(params, stream)
                                    : launch_rows<512, 64>(params, stream);
  };
  const cudaError_t error = launch_row();
  if (error != cudaSuccess || params.config.whole_sequences) return error;
  return launch_latent_merge(params, stream);
}

}  // namespace rudder::cuda
