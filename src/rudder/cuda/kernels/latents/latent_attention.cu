// Rows of queries over tiles of keys, in two stages of shared memory. Eight warps divide q . k by
// rows, halves of a row's elements and keys; partial scores meet in shared memory, where threads
// make weights of them; of the values each warp sums up its own columns for all rows. Queries and
// sums stay in registers over an item's tiles.
//
// A row's bits depend on its tile's form (row_tile) nowhere: products take it alone, in the order
// of elements and keys, and a row's weights are summed up in one order whoever has them.
#include <cuda_bf16.h>

#include "rudder/cuda/kernels/async_copy.cuh"
#include "rudder/cuda/kernels/attention/attention_device.cuh"
#include "rudder/cuda/kernels/latents/latent_attention.h"
#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/tree_path.cuh"

namespace rudder::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kStages = 2;
constexpr int kScorePitch = kLatentTokens + 8;   // floats: rows in different banks
constexpr int kWeightPitch = kLatentTokens + 8;  // bf16: rows of 16 bytes likewise

template <int kRank, int kRope, int kRowTile>
struct LatentShared {
  static constexpr int kRow = kRank + kRope;
  static constexpr int kPitch = kRow * 2 + 16;  // bytes: eight rows' chunks in all banks
  alignas(16) uint8_t keys[kStages][kLatentTokens * kPitch];
  float scores[2][kRowTile][kScorePitch];  // of the halves of a row
  alignas(16) __nv_bfloat16 weights[kRowTile][kWeightPitch];
  float factor[kRowTile];  // of the sums so far
  float2 max_sum[kRowTile];
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

  // Keys that a row of the tile sees.
  __device__ int32_t seen_by(int32_t row, int32_t heads) const {
    if (keys == 0 || path.tokens != 0) return keys;
    return seq.base() + (rows.first + min(row, rows.count - 1)) / heads + 1;
  }
};

template <int kRank, int kRope, int kRowTile>
class LatentBlock {
 public:
  using Shared = LatentShared<kRank, kRope, kRowTile>;
  static constexpr int kRow = Shared::kRow;
  static constexpr int kPitch = Shared::kPitch;
  static constexpr int kRowParts = kRowTile / 16;           // of 16 rows, in q . k
  static constexpr int kKeyParts = kWarps / 2 / kRowParts;  // likewise of keys
  static constexpr int kPartKeys = kLatentTokens / kKeyParts;
  static constexpr int kSteps = kRow / 2 / 16;        // of a half of a row
  static constexpr int kColumns = kRank / kWarps;     // of values of a warp
  static constexpr int kOfRow = kThreads / kRowTile;  // threads that have a row's weights
  static_assert(kRow % 32 == 0 && kColumns % 16 == 0 && kPartKeys % 16 == 0);

  __device__ LatentBlock(const LatentAttentionParams& params, Shared& shared)
      : p_(params),
        shared_(shared),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ void run(const LatentItem& item) {
    blocks_ = p_.block_table + item.seq.table_row * p_.max_blocks;
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
    __syncthreads();  // the last item's stages and sums have been read
    if (item.begin < item.end) {
      from_ = row_of(item, item.begin);
      send(item, item.begin, 0);
      load_queries(item);
    }
#pragma unroll 1
    for (int32_t tile = item.begin; tile < item.end; ++tile) {
      const int stage = (tile - item.begin) % kStages;
      wait_copies<0>();
      __syncthreads();  // the tile is there, and all have read the one before
      if (tile + 1 < item.end) send(item, tile + 1, 1 - stage);
      score(shared_address(shared_.keys[stage]));
      __syncthreads();
      weigh(item, tile);
      __syncthreads();
      add_values(shared_address(shared_.keys[stage]));
    }
    finish(item);
  }

 private:
  // Where the key lies that lane r < 8 names for its warp; null where no row sees it.
  __device__ const uint8_t* row_of(const LatentItem& item, int32_t tile) const {
    const int32_t key = tile * kLatentTokens + warp_ * 8 + lane_ % 8;
    if (key >= item.keys) return nullptr;
    const int32_t at = item.path.offset_of(key);
    const int64_t block = blocks_[at / p_.block_size];
    return static_cast<const uint8_t*>(p_.kv) +
           (block * p_.block_size + at % p_.block_size) * (kRow * 2);
  }

  // Sends for a tile, whose rows from_ has, and looks up those of the next one. Rows that no query
  // sees are zeros.
  __device__ void send(const LatentItem& item, int32_t tile, int stage) {
    constexpr int kChunks = kRow / 8;  // of a row
    const uint32_t to = shared_address(shared_.keys[stage]) + warp_ * 8 * kPitch;
#pragma unroll
    for (int i = 0; i < kChunks / 4; ++i) {
      const int at = i * 32 + lane_;
      const int row = at / kChunks;
      const int column = at % kChunks * 16;
      const auto* const from = reinterpret_cast<const uint8_t*>(
          __shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(from_), row));
      copy_async(to + row * kPitch + column,
                 from == nullptr ? static_cast<const uint8_t*>(p_.kv) : from + column,
                 from == nullptr ? 0 : 16);
    }
    commit_copies();
    from_ = tile + 1 < item.end ? row_of(item, tile + 1) : nullptr;
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
    const uint32_t from = keys + (key_part() * kPartKeys + lane_ / 16 * 8 + lane_ % 8) * kPitch +
                          element_half() * kRow + lane_ / 8 % 2 * 16;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int n = 0; n < kPartKeys / 16; ++n) {
        uint32_t b[4];
        load_matrices(b, from + n * 16 * kPitch + step * 32);
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

  // Weights of a tile relative to the largest score so far. A row's sum adds up 16 sums of every
  // 16th key, in the same order however many threads have them.
  __device__ void weigh(const LatentItem& item, int32_t tile) {
    constexpr int kEach = 16 / kOfRow;  // of the 16 sums
    const int row = static_cast<int>(threadIdx.x) / kOfRow;
    const int first = static_cast<int>(threadIdx.x) % kOfRow;
    const int32_t seen = item.seen_by(row, p_.config.num_heads) - tile * kLatentTokens;
    const float scale = p_.scale * kLog2E;
    float x[kEach][4];
    float largest = row_max_;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int key = first + i * kOfRow + j * 16;
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
    float sums[kEach] = {};
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float weight = exp2_fast(x[i][j] - shift);
        sums[i] += weight;
        shared_.weights[row][first + i * kOfRow + j * 16] = __float2bfloat16_rn(weight);
      }
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
    if (first == 0) shared_.factor[row] = factor;
  }

  // The warp's columns of the tile's values, for all rows.
  __device__ void add_values(uint32_t keys) {
#pragma unroll
    for (int m = 0; m < kRowParts; ++m) {
      const float low = shared_.factor[m * 16 + lane_ / 4];
      const float high = shared_.factor[m * 16 + 8 + lane_ / 4];
      if (!__any_sync(kAllLanes, low != 1.0f || high != 1.0f)) continue;
#pragma unroll
      for (float(&sum)[4] : sums_[m]) {
        sum[0] *= low;
        sum[1] *= low;
        sum[2] *= high;
        sum[3] *= high;
      }
    }
    const uint32_t weights = shared_address(shared_.weights) +
                             (lane_ / 8 % 2 * 8 + lane_ % 8) * (kWeightPitch * 2) + lane_ / 16 * 16;
    const uint32_t values =
        keys + (lane_ / 8 % 2 * 8 + lane_ % 8) * kPitch + (warp_ * kColumns + lane_ / 16 * 8) * 2;
#pragma unroll
    for (int k = 0; k < kLatentTokens / 16; ++k) {
      uint32_t a[kRowParts][4];
#pragma unroll
      for (int m = 0; m < kRowParts; ++m) {
        load_matrices(a[m], weights + m * 16 * (kWeightPitch * 2) + k * 32);
      }
#pragma unroll
      for (int n = 0; n < kColumns / 16; ++n) {
        uint32_t b[4];
        load_matrices_transposed(b, values + k * 16 * kPitch + n * 32);
#pragma unroll
        for (int m = 0; m < kRowParts; ++m) {
          mma<false>(sums_[m][2 * n], a[m], b[0], b[1]);
          mma<false>(sums_[m][2 * n + 1], a[m], b[2], b[3]);
        }
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
        const float sum = shared_.max_sum[r].y;
        const float over = sum == 0.0f ? 0.0f : 1.0f / sum;
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
  const uint8_t* from_ = nullptr;  // row_of() of the tile that is sent for next
  uint32_t queries_[kSteps][4];
  float sums_[kRowParts][kColumns / 8][4];
  float row_max_ = 0;  // of the row whose weights the thread makes, in powers of two
  float row_sum_ = 0;
};

template <int kRank, int kRope, int kRowTile>
__global__ void __launch_bounds__(kThreads, 1)
    latent_attention_kernel(const __grid_constant__ LatentAttentionParams p) {
  extern __shared__ __align__(16) uint8_t raw[];
  auto& shared = *reinterpret_cast<LatentShared<kRank, kRope, kRowTile>*>(raw);
  dependency_wait();
  dependency_trigger();
  const auto& plan = *static_cast<const LatentPlan*>(p.workspace);
  LatentBlock<kRank, kRope, kRowTile> block(p, shared);
#pragma unroll 1
  for (auto item = static_cast<int32_t>(blockIdx.x); item < plan.num_items;
       item += static_cast<int32_t>(gridDim.x)) {
    block.run(LatentItem(p, plan, item, kRowTile));
  }
}

// --- partial results ---

constexpr int kMergeThreads = 512;

// Adds up the chunks of rows that have several: a block takes a row after the other, a thread four
// columns of every kGroups-th chunk of it.
template <int kRank>
__global__ void __launch_bounds__(kMergeThreads)
    latent_merge_kernel(const __grid_constant__ LatentAttentionParams p, int32_t row_tile,
                        bool by_token) {
  constexpr int kColumnThreads = kRank / 4;
  constexpr int kGroups = kMergeThreads / kColumnThreads;
  __shared__ float4 group_values[kGroups][kColumnThreads];
  __shared__ float2 group_sums[kGroups];
  dependency_wait();
  dependency_trigger();
  const auto& plan = *static_cast<const LatentPlan*>(p.workspace);
  const int column = static_cast<int>(threadIdx.x) % kColumnThreads * 4;
  const int group = static_cast<int>(threadIdx.x) / kColumnThreads;
#pragma unroll 1
  for (auto item = static_cast<int32_t>(blockIdx.x); item < plan.num_merges * row_tile;
       item += static_cast<int32_t>(gridDim.x)) {
    int32_t low = 0;
    int32_t high = plan.num_seqs;
    while (high - low > 1) {
      const int32_t mid = (low + high) / 2;
      (plan.seqs()[mid].first_merge <= item / row_tile ? low : high) = mid;
    }
    const LatentSeq seq = plan.seqs()[low];
    const int32_t tile = item / row_tile - seq.first_merge;
    const int32_t row = item % row_tile;
    const LatentRows rows = latent_rows(tile, seq.q_len, p.config.num_heads, row_tile, by_token);
    if (row >= rows.count) continue;  // for the whole block
    float2 total = make_float2(minus_infinity(), 0);
    float4 sum = {};
#pragma unroll 2
    for (int32_t chunk = group; chunk < seq.chunks; chunk += kGroups) {
      const LatentPart part = latent_part(p, row_tile, seq.first_part + tile * seq.chunks + chunk);
      const float2 its = __ldcg(&part.max_sum[row]);
      const float4 values =
          __ldcg(reinterpret_cast<const float4*>(part.values + row * kRank + column));
      const float top = fmaxf(total.x, its.x);
      const float shift = top == minus_infinity() ? 0.0f : top;
      const float mine = exp2_fast(total.x - shift);
      const float other = exp2_fast(its.x - shift);
      total = make_float2(top, total.y * mine + its.y * other);
      sum.x = sum.x * mine + values.x * other;
      sum.y = sum.y * mine + values.y * other;
      sum.z = sum.z * mine + values.z * other;
      sum.w = sum.w * mine + values.w * other;
    }
    group_values[group][column / 4] = sum;
    if (column == 0) group_sums[group] = total;
    __syncthreads();
    if (group == 0) {
      float top = minus_infinity();
      for (int g = 0; g < kGroups; ++g) top = fmaxf(top, group_sums[g].x);
      const float shift = top == minus_infinity() ? 0.0f : top;
      float weight = 0;
      sum = {};
      for (int g = 0; g < kGroups; ++g) {
        const float its = exp2_fast(group_sums[g].x - shift);
        const float4 values = group_values[g][column / 4];
        weight += group_sums[g].y * its;
        sum.x += values.x * its;
        sum.y += values.y * its;
        sum.z += values.z * its;
        sum.w += values.w * its;
      }
      const float over = weight == 0.0f ? 0.0f : 1.0f / weight;
      const int64_t at = int64_t{seq.q_begin} * p.config.num_heads + rows.first + row;
      *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(p.out) + at * p.config.row + column) =
          make_uint2(pack_bf16(sum.x * over, sum.y * over), pack_bf16(sum.z * over, sum.w * over));
    }
    __syncthreads();  // the groups' sums have been read
  }
}

template <int kRank, int kRope, int kRowTile>
cudaError_t launch(const LatentAttentionParams& params, cudaStream_t stream) {
  constexpr size_t kShared = sizeof(LatentShared<kRank, kRope, kRowTile>);
  static_assert(kShared + 1024 <= 228 * 1024);
  const auto kernel = latent_attention_kernel<kRank, kRope, kRowTile>;
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  if (error != cudaSuccess) return error;
  error = launch_pdl(kernel, dim3(static_cast<unsigned>(params.config.num_sms)), dim3(kThreads),
                     kShared, stream, params);
  if (error != cudaSuccess || params.config.whole_sequences) return error;
  return launch_pdl(latent_merge_kernel<kRank>,
                    dim3(static_cast<unsigned>(2 * params.config.num_sms)), dim3(kMergeThreads), 0,
                    stream, params, kRowTile, latent_by_token(params));
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
  return params.config.rank == 512 ? launch_rows<512, 64>(params, stream)
                                   : launch_rows<256, 64>(params, stream);
}

}  // namespace rudder::cuda
