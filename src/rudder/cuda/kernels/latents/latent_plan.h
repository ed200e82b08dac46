// How attention over latent rows (latent_attention.h) is divided: the rows of a sequence's part of
// the step, (token, head) by token, into tiles of rows; the keys of such a tile into chunks of
// tiles of kLatentTokens keys. An item is a chunk of a tile of rows; blocks take items in turn.
// Plain values and their arithmetic, on host and device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace rudder::cuda {

// Of a tile of keys, which begins at a multiple of it. A row's sums are taken tile by tile.
inline constexpr int32_t kLatentTokens = 32;

// A sequence of the step; the last entry is the tokens behind the last sequence, without KV.
struct LatentSeq {
  int32_t q_begin = 0;
  int32_t q_len = 0;
  int32_t kv_len = 0;  // 0: padding, whose rows of out are zeros
  int32_t table_row = 0;
  int32_t row_tiles = 0;
  int32_t chunks = 1;       // of each tile of rows
  int32_t first_item = 0;   // of row_tiles * chunks
  int32_t first_part = 0;   // of as many partial results; with several chunks alone
  int32_t first_merge = 0;  // of row_tiles; likewise

  // Keys in front of the sequence's part of the step.
  __host__ __device__ int32_t base() const { return kv_len - q_len; }
};

// Followed by the sequences.
struct alignas(16) LatentPlan {
  int32_t chunk = 0;  // tiles of keys
  int32_t num_seqs = 0;
  int32_t num_items = 0;
  int32_t num_merges = 0;  // tiles of rows with several chunks

  __host__ __device__ LatentSeq* seqs() { return reinterpret_cast<LatentSeq*>(this + 1); }
  __host__ __device__ const LatentSeq* seqs() const {
    return reinterpret_cast<const LatentSeq*>(this + 1);
  }
};

__host__ __device__ constexpr int32_t latent_tiles(int32_t keys, int32_t each) {
  return (keys + each - 1) / each;
}

// Rows of a tile: 16, 32 or 64. `max_rows`: of a sequence's part of any step like this one.
__host__ __device__ constexpr int32_t latent_row_tile(int64_t max_rows) {
  return max_rows <= 16 ? 16 : max_rows <= 32 ? 32 : 64;
}

// Blocks that run side by side.
__host__ __device__ constexpr int32_t latent_blocks(int32_t row_tile, int32_t num_sms) {
  return row_tile == 64 ? num_sms : 2 * num_sms;
}

// by_token: a tile has rows of one token alone, as where tokens see paths of trees.
__host__ __device__ constexpr int32_t latent_row_tiles(int32_t q_len, int32_t num_heads,
                                                       int32_t row_tile, bool by_token) {
  return by_token ? q_len * latent_tiles(num_heads, row_tile)
                  : latent_tiles(q_len * num_heads, row_tile);
}

// Rows of a tile of them.
struct LatentRows {
  int32_t first = 0;  // of the sequence's part of the step
  int32_t count = 0;
};
__host__ __device__ constexpr LatentRows latent_rows(int32_t tile, int32_t q_len, int32_t num_heads,
                                                     int32_t row_tile, bool by_token) {
  const int32_t of_token = latent_tiles(num_heads, row_tile);
  const int32_t first =
      by_token ? tile / of_token * num_heads + tile % of_token * row_tile : tile * row_tile;
  const int32_t end = by_token ? (tile / of_token + 1) * num_heads : q_len * num_heads;
  return {first, end - first < row_tile ? end - first : row_tile};
}

// Candidates for the length of a chunk: 1 to 32, then eight of each octave; the last one is longer
// than any sequence.
inline constexpr int32_t kLatentChunks = 128;
__host__ __device__ constexpr int32_t latent_chunk(int32_t candidate) {
  if (candidate < 32) return candidate + 1;
  if (candidate == kLatentChunks - 1) return 1 << 30;
  return (32 << (candidate / 8 - 4)) / 8 * (8 + candidate % 8 + 1);
}

// What an item costs beside its tiles of keys, in such tiles: queries that are read, sums that are
// written.
inline constexpr int64_t kLatentItemTiles = 3;

// Time of a step in tiles of keys, when `items` of up to `longest` tiles go to so many blocks.
__host__ __device__ constexpr int64_t latent_cost(int64_t items, int64_t longest, int32_t blocks) {
  return (items + blocks - 1) / blocks * (longest + kLatentItemTiles);
}

}  // namespace rudder::cuda
