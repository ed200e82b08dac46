// Scores of captured tokens, and from them the weights of rows of one chunk and the exponentials of
// longer ones (end_patterns.cu). A unit of work is a chunk of keys that up to 16 heads of a KV head
// read for one token; a block takes neighbouring units. Its warps have a tile of 16 keys each of
// every chunk, whose keys come through a ring of the warp's own, ahead over the ends of chunks; a
// chunk costs one barrier, at which the warps exchange their largest scores and sums.
//
// mma.m16n8k16: 16 rows are the heads, so each byte of K is read once for all of them. Codes become
// f16 in registers, as in attention_split.cu.
#include <cstdint>

#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/patterns/pattern_keys.cuh"

namespace rudder::cuda {
namespace {

constexpr int kScorePad = 4;  // keeps heads in different banks
struct Shared {
  HeadTile tile;  // that the block works on
  // [16 keys][128 bytes]: the 16-byte chunk c of row r is at chunk c ^ (r & 7).
  alignas(16) uint8_t ring[kPatternWarps][kStages][kStageBytes];
  // Of even and odd chunks, so that one barrier a chunk is enough.
  float score[2][kHeadTile][kPatternChunk + kScorePad];  // of a gate
  float2 sums[2][kPatternWarps][kHeadTile];              // of tiles, as PatternBatch::sums
};

// Zeros of keys that no chunk has, and the sums of chunks that need none: the share of units
// [begin, end) of the tile's rows. All threads.
__device__ void clear_unseen(const PatternParams& p, const HeadTile& tile, int begin, int end) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int keys = tile.of.entry.keys;
  const SeenKeys& seen = tile.seen;
  const auto share = [&](int count, int unit) {
    return static_cast<int>(int64_t{count} * unit / seen.units());
  };
  const int from = share(keys, begin);
  const int to = share(keys, end);
  const int seen_begin = seen.num_chunks > 0 ? seen.first_chunk * seen.stride : keys;
  const int seen_end = seen_begin + seen.num_chunks * seen.stride;
  const bool has_sums = p.gate.length == 0 && seen.num_chunks > 1;
  const int chunks = keys > kPatternChunk ? pattern_chunks(keys) : 0;
  for (int n = static_cast<int>(threadIdx.x) / 32; n < tile.count; n += kPatternWarps) {
    const int64_t row = tile.row(p, n);
    Bf16* const out = static_cast<Bf16*>(p.batch.ring) + row;
    const auto clear = [&](int low, int high) {
      for (int at = low + lane; at < high; at += 32) out[at] = __float2bfloat16(0.0f);
    };
    clear(from, min(to, seen_begin));
    clear(max(from, seen_end), to);
    float2* const sums = pattern_sums(p.batch, row);
    for (int c = share(chunks, begin) + lane; c < share(chunks, end); c += 32) {
      const int behind = c - seen.first_chunk;
      if (has_sums && behind >= 0 && behind < seen.num_chunks) continue;
      sums[c] = make_float2(-INFINITY, 0.0f);
    }
  }
}

// A lane's part of a chunk: of two heads four neighbouring keys.
struct LaneScores {
  float of[2][4];
  int key;  // the first of the four
  bool is_seen[4];
};

__device__ float quad_max(float v) {
  v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, 1));
  return fmaxf(v, __shfl_xor_sync(kAllLanes, v, 2));
}

// The clamped weights of a gate. All threads; a barrier.
__device__ void write_gated(const PatternParams& p, const LaneScores& scores,
                            const PatternRow (&rows)[2],
                            float (&shared)[kHeadTile][kPatternChunk + kScorePad]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int column = static_cast<int>(threadIdx.x) / 32 * kTileKeys + lane % 4 * 4;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      shared[lane / 4 + row * 8][column + j] = scores.is_seen[j] ? scores.of[row][j] : 0.0f;
    }
  }
  __syncthreads();
  if (column < kTileKeys) return;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    if (rows[row].out == nullptr) continue;
    const float* const of_head = shared[lane / 4 + row * 8];
    const float factor = p.gate.sigma[rows[row].head] / static_cast<float>(p.gate.length);
    float weights[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float sum = 0;
      for (int i = p.gate.length - 1; i >= 0; --i) {
        const float score = of_head[column + j - i];
        sum += p.gate.relu_pre && score < 0.0f ? 0.0f : score;
      }
      const float weight = scores.of[row][j] - factor * sum;
      const float clamped = weight < p.gate.low    ? p.gate.low
                            : weight > p.gate.high ? p.gate.high
                                                   : weight;
      weights[j] = scores.is_seen[j] ? clamped : 0.0f;
    }
    rows[row].store(scores.key, weights);
  }
}

// The weights of rows whose keys lie in this chunk, with the sink; of longer rows the exponentials
// relative to the largest score of the chunk, and their sum. A sink counts as a key of the first
// chunk. All threads; a barrier.
__device__ void write_softmax(const PatternParams& p, const SeenKeys& seen, int chunk,
                              const LaneScores& scores, const PatternRow (&rows)[2],
                              float2 (&shared)[kPatternWarps][kHeadTile]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const bool is_whole = seen.num_chunks == 1;
  float weights[2][4];
  float largest[2];  // of the tile
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float top = -INFINITY;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (scores.is_seen[j]) top = fmaxf(top, scores.of[row][j]);
    }
    largest[row] = quad_max(top);
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      weights[row][j] = scores.is_seen[j] ? expf(scores.of[row][j] - largest[row]) : 0.0f;
      sum += weights[row][j];
    }
    sum = row_sum(sum);
    if (lane % 4 == 0) shared[warp][lane / 4 + row * 8] = make_float2(largest[row], sum);
  }
  __syncthreads();
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    // Each lane of four adds two of the eight tiles.
    static_assert(kPatternWarps == 8);
    const float2 low = shared[lane % 4][lane / 4 + row * 8];
    const float2 high = shared[lane % 4 + 4][lane / 4 + row * 8];
    const bool has_sink =
        p.sinks != nullptr && rows[row].out != nullptr && chunk == seen.first_chunk;
    const float sink = has_sink ? p.sinks[rows[row].head] : -INFINITY;
    const float top = fmaxf(quad_max(fmaxf(low.x, high.x)), sink);
    const float sum = row_sum(low.y * expf(low.x - top) + high.y * expf(high.x - top)) +
                      (has_sink ? expf(sink - top) : 0.0f);
    const float factor = expf(largest[row] - top) / (is_whole ? sum : 1.0f);
#pragma unroll
    for (int j = 0; j < 4; ++j) weights[row][j] *= factor;
    rows[row].store(scores.key, weights[row]);
    if (!is_whole && warp == 0 && lane % 4 == 0 && rows[row].out != nullptr) {
      const int64_t begin = rows[row].out - static_cast<Bf16*>(p.batch.ring);
      pattern_sums(p.batch, begin)[chunk] = make_float2(top, sum);
    }
  }
}

// Units [begin, end) of shared.tile. All threads; `parity` is of the chunks so far.
template <bool kNarrow, int kSlices>
__device__ void write_units(const PatternParams& p, int begin, int end, Shared& shared,
                            int& parity) {
  const HeadTile& tile = shared.tile;
  const SeenKeys& seen = tile.seen;
  clear_unseen(p, tile, begin, end);
  if (seen.num_chunks == 0) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int end_chunk = seen.first_chunk + end;
  int chunk = seen.first_chunk + begin;
  KeyRing<kNarrow, kSlices> keys(p, tile, chunk, end_chunk, shared.ring[warp][0]);
  PatternRow rows[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int n = lane / 4 + row * 8;
    rows[row].head = tile.head(p, n);
    rows[row].out = n < tile.count ? static_cast<Bf16*>(p.batch.ring) + tile.row(p, n) : nullptr;
    rows[row].keys = tile.of.entry.keys;
  }
  const Query<kNarrow, kSlices> query(p, tile.token, rows);
  const float scale = p.scale * (p.scales.k != nullptr ? p.scales.k[tile.kv_head] : 1.0f);
  for (; chunk < end_chunk; ++chunk) {
    float products[2][4] = {};
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      query.add_products(products, slice, keys.receive());
    }
    LaneScores scores;
    scores.key = chunk * seen.stride - seen.lead + warp * kTileKeys + lane % 4 * 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int key = scores.key + j;
      scores.is_seen[j] = key >= seen.first && key <= seen.last;
      const float key_scale = keys.scale_of(key);
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float score = products[j / 2][row * 2 + j % 2] * key_scale * scale;
        scores.of[row][j] = p.softcap != 0.0f ? p.softcap * tanhf(score / p.softcap) : score;
      }
    }
    if (p.gate.length > 0) {
      write_gated(p, scores, rows, shared.score[parity]);
    } else {
      write_softmax(p, seen, chunk, scores, rows, shared.sums[parity]);
    }
    parity ^= 1;
  }
}

template <bool kNarrow, int kSlices>
constexpr int kBlocksPerSm = kSlices*(kNarrow ? 2 : 1) <= 4 ? 2 : 1;

template <bool kNarrow, int kSlices>
__global__ void __launch_bounds__(kPatternThreads, kBlocksPerSm<kNarrow, kSlices>)
    patterns_kernel(const __grid_constant__ PatternParams p) {
  extern __shared__ uint4 memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  // Whether anything is asked of the layer is known before the kernel in front has ended.
  bool is_asked = false;
  for (int token = threadIdx.x; token < p.batch.num_tokens; token += kPatternThreads) {
    is_asked = is_asked || TokenPatterns(p.batch, token, p.layer).seq >= 0;
  }
  const bool has_work = __syncthreads_or(is_asked) != 0;
  dependency_wait();
  dependency_trigger();
  if (!has_work) return;
  int parity = 0;
  share_pattern_work(
      p.batch.num_tokens, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x),
      [&](int token) {
        const TokenPatterns of(p.batch, token, p.layer);
        if (of.seq < 0) return 0;
        int tiles = 0;
        for (int kv_head = 0; kv_head < p.num_kv_heads; ++kv_head) {
          tiles += tiles_of(p, of.entry, kv_head);
        }
        return tiles * SeenKeys(p, of, token).units();
      },
      [&](int token, int begin, int end) {
        while (begin < end) {
          __syncthreads();  // nobody reads the tile before
          if (threadIdx.x == 0) {
            const int units = SeenKeys(p, TokenPatterns(p.batch, token, p.layer), token).units();
            shared.tile = HeadTile(p, token, begin / units);
          }
          __syncthreads();
          const int units = shared.tile.seen.units();
          const int first = begin % units;
          const int count = min(end - begin, units - first);
          write_units<kNarrow, kSlices>(p, first, first + count, shared, parity);
          begin += count;
        }
      });
}

template <bool kNarrow, int kSlices>
cudaError_t launch_slices(const PatternParams& params, cudaStream_t stream) {
  const cudaError_t error = cudaFuncSetAttribute(patterns_kernel<kNarrow, kSlices>,
                                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                 static_cast<int>(sizeof(Shared)));
  if (error != cudaSuccess) return error;
  const dim3 grid(static_cast<unsigned>(params.batch.num_sms * kBlocksPerSm<kNarrow, kSlices>));
  return launch_pdl(patterns_kernel<kNarrow, kSlices>, grid, dim3(kPatternThreads), sizeof(Shared),
                    stream, params);
}

template <bool kNarrow>
cudaError_t launch_keys(const PatternParams& params, cudaStream_t stream) {
  const int slices = (params.head_dim * (kNarrow ? 1 : 2) + kSliceBytes - 1) / kSliceBytes;
  if (slices <= 1) return launch_slices<kNarrow, 1>(params, stream);
  if (slices <= 2) return launch_slices<kNarrow, 2>(params, stream);
  if constexpr (!kNarrow) {
    if (slices > 8) return launch_slices<kNarrow, 9>(params, stream);
    if (slices > 4) return launch_slices<kNarrow, 8>(params, stream);
  }
  return launch_slices<kNarrow, 4>(params, stream);
}

}  // namespace

cudaError_t launch_patterns(const PatternParams& params, cudaStream_t stream) {
  if (params.batch.num_tokens <= 0) return cudaSuccess;
  if (params.head_dim > pattern_max_head_dim(params.kv_type)) return cudaErrorInvalidValue;
  return is_narrow(params.kv_type) ? launch_keys<true>(params, stream)
                                   : launch_keys<false>(params, stream);
}

}  // namespace rudder::cuda
