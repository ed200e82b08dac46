// The keys that a tile of heads reads, and its products with them. Included by patterns.cu only.
#pragma once

#include <cstdint>

#include "rudder/cuda/kernels/attention/attention_device.cuh"
#include "rudder/cuda/kernels/patterns/pattern_work.cuh"

namespace rudder::cuda {

inline constexpr int kHeadTile = 16;     // heads that share a read of K
inline constexpr int kTileKeys = 16;     // of a warp
inline constexpr int kSliceBytes = 128;  // of a key that are a stage of the ring
inline constexpr int kStageBytes = kTileKeys * kSliceBytes;
inline constexpr int kStages = 4;
static_assert(kPatternWarps * kTileKeys == kPatternChunk);
// Under a gate the first tile of a chunk is what the others look back at.
static_assert(ops::kMaxFirLength <= kTileKeys);

// The keys of a row: those that the token sees, [first, last], and the chunks that have some.
struct SeenKeys {
  int first;
  int last;
  int stride;  // new keys of a chunk
  int lead;    // keys in front of them, in the chunk's first tile
  int first_chunk;
  int num_chunks;  // 0: the record has no room for the token's keys

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
__device__ inline int tiles_of(const PatternParams& p, const ops::PatternEntry& entry,
                               int kv_head) {
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

  // `index_` counts the tiles of all KV heads.
  __device__ HeadTile(const PatternParams& p, int token_, int index_)
      : of(p.batch, token_, p.layer), token(token_), seen(p, of, token_), index(index_) {
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

// Elements [at, at + 16 bytes) of a key of any alignment; those from head_dim on are zero.
template <bool kNarrow>
__device__ inline uint4 gather_elements(const uint8_t* key, int at, int head_dim) {
  constexpr int kBytes = kNarrow ? 1 : 2;
  uint32_t words[4] = {};
#pragma unroll
  for (int i = 0; i < 16 / kBytes; ++i) {
    if (at + i >= head_dim) continue;
    uint32_t element;
    if constexpr (kNarrow) {
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
__device__ inline int key_of_row(int r) {
  return (r & 6) * 2 + r / 8 * 2 + (r & 1);
}

// A warp's keys of chunks [begin, end), stage after stage.
template <bool kNarrow, int kSlices>
class KeyRing {
 public:
  __device__ KeyRing(const PatternParams& p, const HeadTile& tile, int begin, int end,
                     uint8_t* ring)
      : p_(p),
        seen_(tile.seen),
        blocks_(p.block_table + p.table_row[tile.of.seq] * p.max_blocks),
        key_bytes_(p.head_dim * (kNarrow ? 1 : 2)),
        kv_head_(tile.kv_head),
        ring_(ring),
        chunk_(begin),
        end_(end) {
    const int64_t head_bytes = int64_t{p.block_size} * key_bytes_;
    block_bytes_ = p.parts * p.num_kv_heads * head_bytes;
    keys_ = static_cast<const uint8_t*>(p.kv) + tile.kv_head * head_bytes;
    next_ = key_at(begin);
    __syncwarp();  // nobody reads the ring's last stages any more
#pragma unroll 1
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

  // Of a key of the chunk that was received, where tokens have scales.
  __device__ float scale_of(int key) const {
    if (p_.scales.tokens == nullptr) return 1.0f;
    const int at = min(max(key, seen_.first), seen_.last);
    return p_.scales.tokens[blocks_[at / p_.block_size] * p_.scales.token_pitch +
                            kv_head_ * p_.block_size + at % p_.block_size];
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
            gather_elements<kNarrow>(key, column / (kNarrow ? 1 : 2), p_.head_dim);
      }
    }
  }

  const PatternParams& p_;
  const SeenKeys& seen_;
  const int32_t* blocks_;
  const uint8_t* keys_;  // of the KV head in block 0
  int64_t block_bytes_;
  int key_bytes_;
  int kv_head_;
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
template <bool kNarrow, int kSlices>
class Query {
 public:
  __device__ Query(const PatternParams& p, int token, const PatternRow (&rows)[2])
      : is_int8_(p.kv_type == KvType::kInt8Tokens) {
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
          fragments_[run * 2 + w / 2][w % 2 * 2 + row] =
              kNarrow ? half_of_bf16(words[w]) : words[w];
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
        if constexpr (kNarrow) {
          const uint32_t fours[4] = {k.x, k.y, k.z, k.w};
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const uint2 wide = is_int8_ ? widen_four_int8(fours[j]) : widen_four(fours[j]);
            mma<true>(scores[n], fragments_[step + j], wide.x, wide.y);
          }
        } else {
          mma<false>(scores[n], fragments_[step], k.x, k.y);
          mma<false>(scores[n], fragments_[step + 1], k.z, k.w);
        }
      }
    }
  }

 private:
  static constexpr int kChunkRuns = kNarrow ? 2 : 1;      // runs of q for 16 bytes of K
  static constexpr int kRuns = kSlices * 2 * kChunkRuns;  // of a lane, in the order of its chunks
  const bool is_int8_;
  uint32_t fragments_[kRuns * 2][4];
};

}  // namespace rudder::cuda
