#include "rudder/cuda/kernels/latents/latent_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace rudder::cuda {
namespace {

TEST(LatentPlan, TilesHaveEachRowOnce) {
  for (const int32_t heads : {1, 16, 20, 24, 64, 128}) {
    for (const int32_t q_len : {0, 1, 3, 17, 40}) {
      for (const bool by_token : {false, true}) {
        const int32_t each = latent_row_tile(by_token ? heads : int64_t{heads} * q_len);
        std::vector<int> times(static_cast<size_t>(heads * q_len), 0);
        const int32_t tiles = latent_row_tiles(q_len, heads, each, by_token);
        for (int32_t tile = 0; tile < tiles; ++tile) {
          const LatentRows rows = latent_rows(tile, q_len, heads, each, by_token);
          EXPECT_TRUE(rows.count >= 1 && rows.count <= each);
          for (int32_t r = rows.first; r < rows.first + rows.count; ++r) {
            ++times[static_cast<size_t>(r)];
            if (by_token) {
              EXPECT_EQ(r / heads, rows.first / heads);
            }
          }
        }
        EXPECT_EQ(std::ranges::count(times, 1), std::ssize(times));
      }
    }
  }
}

TEST(LatentPlan, ChunksBecomeLonger) {
  for (int32_t candidate = 1; candidate < kLatentChunks; ++candidate) {
    EXPECT_GT(latent_chunk(candidate), latent_chunk(candidate - 1));
    EXPECT_LE(latent_chunk(candidate - 1), 1 << 20);
  }
  EXPECT_EQ(latent_chunk(kLatentChunks - 1), 1 << 30);
}

// Sequences of equal length: a step is hardly longer than what all blocks together have to do.
TEST(LatentPlan, ChunksFillTheDevice) {
  constexpr int32_t kBlocks = 132;
  for (const int32_t seqs : {1, 2, 8, 32, 100, 128, 256}) {
    for (const int32_t tiles : {1, 8, 64, 256}) {
      int64_t best = std::numeric_limits<int64_t>::max();
      for (int32_t candidate = 0; candidate < kLatentChunks; ++candidate) {
        const int32_t chunk = latent_chunk(candidate);
        const int64_t items = int64_t{seqs} * latent_tiles(tiles, chunk);
        best = std::min(best, latent_cost(items, std::min(chunk, tiles), kBlocks));
      }
      const int64_t least = latent_tiles(seqs * tiles, kBlocks);
      EXPECT_LE(best, least * 5 / 4 + 3 * kLatentItemTiles) << seqs << " x " << tiles;
    }
  }
}

}  // namespace
}  // namespace rudder::cuda
