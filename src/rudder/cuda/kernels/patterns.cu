// Scores of captured tokens, and from them the weights of rows of one chunk and the exponentials of
// longer ones (end_patterns.cu). A unit of work is a chunk of keys that up to 16 heads of a KV head
// read for one token; a block takes neighbouring units. Its warps have a tile of 16 keys each of
// every chunk, whose keys come through a ring of the warp's own, ahead over the ends of chunks; a
// chunk costs one barrier, at which the warps exchange their largest scores and sums.
//
// mma.m16n8k16: 16 rows are the heads, so each byte of K is read once for all of them. fp8 becomes
// f16 in registers, as in attention_split.cu.
#include <cstdint>

#include "rudder/cuda/kernels/attention_device.cuh"
#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/pattern_work.cuh"

namespace rudder::cuda {
namespace {

constexpr int kHeadTile = 16;     // heads that share a read of K
constexpr int kTileKeys = 16;     // of a warp
constexpr int kSliceBytes = 128;  // of a key that are a stage of the ring
constexpr int kStageBytes = kTileKeys * kSliceBytes;
constexpr int kStages = 4;
static_assert(kPatternWarps * kTileKeys == kPatternChunk);
// Under a gate the first tile of a chunk is what the others look back at.
static_assert(kMaxGateLength <= kTileKeys);

// The keys of a row: those that the token sees, [first, last], and the chunks that have some.
struct SeenKeys {
  int first;
  int last;
  int stride;  // new keys of a chunk
  int lead;    // keys in front of them, in the chunk's first tile
  int first_chunk;
  int num_chunks;  // 0: the record has no place for the token's keys

  __device__ SeenKeys(const PatternParams& p, const TokenPatterns& of, int token)
      : stride(kPatternChunk), lead(0) {
    last = p.batch.kv_len[of.seq] - p.batch.q_begin[of.seq + 1] + token;
    first = p.window > 0 ? max(0, last - p.window + 1) : 0;
    if (p.gate.length > 0) {
      lead = kTileKeys;
      stride -= lead;
    }
    first_chunk = first / stride;
    num_chunks = last < of.entry.keys ? last / stride - first_chunk + 1 : 0;
  }
  // A row without keys has a unit of zeros.
  __device__ int units() const { return max(num_chunks, 1); }
};

// Asked heads of a KV head, as tiles.
__device__ int tiles_of(const PatternParams& p, const ops::PatternEntry& entry, int kv_head) {
  const int group = p.num_heads / p.num_kv_heads;
  const int heads =
      heads_before(entry, (kv_head + 1) * group) - heads_before(entry, kv_head * group);
  return (heads + kHeadTile - 1) / kHeadTile;
}

// Up to 16 heads that are asked for of a token, all of one KV head. In shared memory, where it
// takes no registers of the loop over chunks.
struct HeadTile {
  TokenPatterns of;
  int token;
  SeenKeys seen;
  int kv_head = 0;
  int index;  // of the tile among those of the KV head
  int first;  // of its heads, among all that are asked for
  int count;

  // `place` counts the tiles of all KV heads.
  __device__ HeadTile(const PatternParams& p, int token_, int place)
      : of(p.batch, token_, p.layer), token(token_), seen(p, of, token_), index(place) {
    for (int tiles = tiles_of(p, of.entry, 0); index >= tiles;
         tiles = tiles_of(p, of.entry, kv_head)) {
      index -= tiles;
      ++kv_head;
    }
    const int group = p.num_heads / p.num_kv_heads;
    first = heads_before(of.entry, kv_head * group) + index * kHeadTile;
    count = min(heads_before(of.entry, (kv_head + 1) * group) - first, kHeadTile);
  }
  // Where the row of head n of the tile begins in the ring.
  __device__ int64_t row(const PatternParams& p, int n) const {
    return of.row(p.batch, token, first + n);
  }
  // Head n of the tile; -1 past the last.
  __device__ int head(const PatternParams& p, int n) const {
    if (n >= count) return -1;
    const int group = p.num_heads / p.num_kv_heads;
    int head = kv_head * group;
    for (int left = index * kHeadTile + n;; ++head) {
      const bool is_asked = (of.entry.heads[head / 32] >> (head % 32) & 1u) != 0;
      if (is_asked && left-- == 0) return head;
    }
  }
};

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

// Elements [at, at + 16 bytes) of a key of any alignment; those from head_dim on are zero.
template <bool kFp8>
__device__ uint4 gather_elements(const uint8_t* key, int at, int head_dim) {
  constexpr int kBytes = kFp8 ? 1 : 2;
  uint32_t words[4] = {};
#pragma unroll
  for (int i = 0; i < 16 / kBytes; ++i) {
    if (at + i >= head_dim) continue;
    uint32_t element;
    if constexpr (kFp8) {
      element = key[at + i];
    } else {
      element = reinterpret_cast<const uint16_t*>(key)[at + i];
    }
    words[i * kBytes / 4] |= element << (i * kBytes % 4 * 8);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// The key that row r of a stage holds: a lane's columns of both tiles of 8 are then four
// neighbouring keys.
__device__ int key_of_row(int r) {
  return (r & 6) * 2 + r / 8 * 2 + (r & 1);
}

// A warp's keys of chunks [begin, end), stage after stage.
template <bool kFp8, int kSlices>
class KeyRing {
 public:
  __device__ KeyRing(const PatternParams& p, const HeadTile& tile, int begin, int end,
                     uint8_t* ring)
      : p_(p),
        seen_(tile.seen),
        blocks_(p.block_table + p.table_row[tile.of.seq] * p.max_blocks),
        key_bytes_(p.head_dim * (kFp8 ? 1 : 2)),
        ring_(ring),
        chunk_(begin),
        end_(end) {
    const int64_t head_bytes = int64_t{p.block_size} * key_bytes_;
    block_bytes_ = 2 * p.num_kv_heads * head_bytes;
    keys_ = static_cast<const uint8_t*>(p.kv) + tile.kv_head * head_bytes;
    next_ = key_at(begin);
    __syncwarp();  // nobody reads the ring's last stages any more
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) send();
  }

  // The oldest stage, once it is there; sends for one more. Its memory is that of the stage before,
  // which no lane reads when all are here.
  __device__ uint32_t receive() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
    __syncwarp();
    send();
    const uint32_t stage = shared_address(ring_ + received_ * kStageBytes);
    received_ = (received_ + 1) % kStages;
    return stage;
  }

 private:
  // Where the lane's key of the tile is. Keys that the token does not see are read as others.
  __device__ const uint8_t* key_at(int chunk) const {
    const int row = static_cast<int>(threadIdx.x) % kTileKeys;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int key = chunk * seen_.stride - seen_.lead + warp * kTileKeys + key_of_row(row);
    const int at = min(max(key, seen_.first), seen_.last);
    return keys_ + blocks_[at / p_.block_size] * block_bytes_ + at % p_.block_size * key_bytes_;
  }

  __device__ void send() {
    if (chunk_ < end_) {
      if (slice_ == 0) {
        key_ = next_;
        if (chunk_ + 1 < end_) next_ = key_at(chunk_ + 1);
      }
      send_slice();
      if (++slice_ == kSlices) {
        slice_ = 0;
        ++chunk_;
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    sent_ = (sent_ + 1) % kStages;
  }

  __device__ void send_slice() {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int column = slice_ * kSliceBytes + lane % 8 * 16;  // in bytes
#pragma unroll
    for (int i = 0; i < kTileKeys / 4; ++i) {
      const int row = i * 4 + lane / 8;
      const auto* const key = reinterpret_cast<const uint8_t*>(
          __shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(key_), row));
      uint8_t* const to =
          ring_ + sent_ * kStageBytes + row * kSliceBytes + ((lane % 8 ^ (row & 7)) << 4);
      if (key_bytes_ % 16 == 0) {
        const bool is_there = column < key_bytes_;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                     "l"(key + (is_there ? column : 0)), "r"(is_there ? 16 : 0)
                     : "memory");
      } else {
        *reinterpret_cast<uint4*>(to) =
            gather_elements<kFp8>(key, column / (kFp8 ? 1 : 2), p_.head_dim);
      }
    }
  }

  const PatternParams& p_;
  const SeenKeys& seen_;
  const int32_t* blocks_;
  const uint8_t* keys_;  // of the KV head in block 0
  int64_t block_bytes_;
  int key_bytes_;
  uint8_t* ring_;
  const uint8_t* key_ = nullptr;   // of the lane, in the chunk that is sent for
  const uint8_t* next_ = nullptr;  // in the one behind it
  int chunk_;                      // the next stage to send for
  int slice_ = 0;
  int end_;
  int sent_ = 0;
  int received_ = 0;
};

// A head's row in the record.
struct PatternRow {
  int head;
  Bf16* out;  // null: none
  int keys;

  // Of keys [key, key + 4), those within the row.
  __device__ void store(int key, const float (&weights)[4]) const {
    if (out == nullptr) return;
    if (key + 4 <= keys && reinterpret_cast<uintptr_t>(out) % sizeof(uint2) == 0) {
      *reinterpret_cast<uint2*>(out + key) =
          make_uint2(pack_bf16(weights[0], weights[1]), pack_bf16(weights[2], weights[3]));
      return;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (key + j < keys) out[key + j] = __float2bfloat16_rn(weights[j]);
    }
  }
};

// Fragments of q, and products with stages of K. The order of elements inside a product is that of
// Page (attention_device.cuh): of a slice, lane t of four has the 16-byte chunks 2t and 2t + 1.
template <bool kFp8, int kSlices>
class Query {
 public:
  __device__ Query(const PatternParams& p, int token, const PatternRow (&rows)[2]) {
    const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const Bf16* const head = static_cast<const Bf16*>(p.q) +
                               (int64_t{token} * p.num_heads + max(rows[row].head, 0)) * p.head_dim;
#pragma unroll
      for (int run = 0; run < kRuns; ++run) {
        const int chunk = run / kChunkRuns / 2 * 8 + 2 * t + run / kChunkRuns % 2;
        const int column = (chunk * kChunkRuns + run % kChunkRuns) * kRun;
        const int left = rows[row].out == nullptr ? 0 : p.head_dim - column;
        const Packed packed = p.head_dim % kRun == 0 ? load_run<true>(head + column, left)
                                                     : load_run<false>(head + column, left);
        uint32_t words[4];
        memcpy(words, &packed, sizeof(words));
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          fragments_[run * 2 + w / 2][w % 2 * 2 + row] = kFp8 ? half_of_bf16(words[w]) : words[w];
        }
      }
    }
  }

  // Adds what slice `slice` has: scores[n] are of columns 8n + 2t and the next one, of heads g
  // ([0], [1]) and g + 8.
  __device__ void add_products(float (&scores)[2][4], int slice, uint32_t stage) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int g = lane / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int step = (slice * 2 + i) * kChunkRuns * 2;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const uint4 k =
            load_shared(stage + (n * 8 + g) * kSliceBytes + (((lane % 4 * 2 + i) ^ g) << 4));
        if constexpr (kFp8) {
          mma<true>(scores[n], fragments_[step], widen(k.x), widen(k.x >> 16));
          mma<true>(scores[n], fragments_[step + 1], widen(k.y), widen(k.y >> 16));
          mma<true>(scores[n], fragments_[step + 2], widen(k.z), widen(k.z >> 16));
          mma<true>(scores[n], fragments_[step + 3], widen(k.w), widen(k.w >> 16));
        } else {
          mma<false>(scores[n], fragments_[step], k.x, k.y);
          mma<false>(scores[n], fragments_[step + 1], k.z, k.w);
        }
      }
    }
  }

 private:
  static constexpr int kChunkRuns = kFp8 ? 2 : 1;         // runs of q for 16 bytes of K
  static constexpr int kRuns = kSlices * 2 * kChunkRuns;  // of a lane, in the order of its chunks
  uint32_t fragments_[kRuns * 2][4];
};

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
template <bool kFp8, int kSlices>
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
  KeyRing<kFp8, kSlices> keys(p, tile, chunk, end_chunk, shared.ring[warp][0]);
  PatternRow rows[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int n = lane / 4 + row * 8;
    rows[row].head = tile.head(p, n);
    rows[row].out = n < tile.count ? static_cast<Bf16*>(p.batch.ring) + tile.row(p, n) : nullptr;
    rows[row].keys = tile.of.entry.keys;
  }
  const Query<kFp8, kSlices> query(p, tile.token, rows);
  const float scale = p.scale * (p.k_scale != nullptr ? p.k_scale[tile.kv_head] : 1.0f);
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
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float score = products[j / 2][row * 2 + j % 2] * scale;
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

template <bool kFp8, int kSlices>
constexpr int kBlocksPerSm = kSlices*(kFp8 ? 2 : 1) <= 4 ? 2 : 1;

template <bool kFp8, int kSlices>
__global__ void __launch_bounds__(kPatternThreads, kBlocksPerSm<kFp8, kSlices>)
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
          write_units<kFp8, kSlices>(p, first, first + count, shared, parity);
          begin += count;
        }
      });
}

template <bool kFp8, int kSlices>
cudaError_t launch_slices(const PatternParams& params, cudaStream_t stream) {
  const cudaError_t error = cudaFuncSetAttribute(patterns_kernel<kFp8, kSlices>,
                                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                 static_cast<int>(sizeof(Shared)));
  if (error != cudaSuccess) return error;
  const dim3 grid(static_cast<unsigned>(params.batch.num_sms * kBlocksPerSm<kFp8, kSlices>));
  return launch_pdl(patterns_kernel<kFp8, kSlices>, grid, dim3(kPatternThreads), sizeof(Shared),
                    stream, params);
}

template <bool kFp8>
cudaError_t launch_keys(const PatternParams& params, cudaStream_t stream) {
  const int slices = (params.head_dim * (kFp8 ? 1 : 2) + kSliceBytes - 1) / kSliceBytes;
  if (slices <= 1) return launch_slices<kFp8, 1>(params, stream);
  if (slices <= 2) return launch_slices<kFp8, 2>(params, stream);
  if constexpr (!kFp8) {
    if (slices > 4) return launch_slices<kFp8, 8>(params, stream);
  }
  return launch_slices<kFp8, 4>(params, stream);
}

}  // namespace

cudaError_t launch_patterns(const PatternParams& params, cudaStream_t stream) {
  if (params.batch.num_tokens <= 0) return cudaSuccess;
  if (params.head_dim > kPatternMaxHeadDim) return cudaErrorInvalidValue;
  return params.kv_is_fp8 ? launch_keys<true>(params, stream) : launch_keys<false>(params, stream);
}

}  // namespace rudder::cuda
