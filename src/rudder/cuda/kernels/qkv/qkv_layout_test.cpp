#include "rudder/cuda/kernels/qkv/qkv_layout.h"

#include <gtest/gtest.h>

#include <vector>

namespace rudder::cuda {
namespace {

// Each element of a head belongs to one run of one lane, and an element that turns has its partner
// in the same lane.
TEST(QkvLayout, LanesShareOutAHead) {
  for (int dim = 8; dim <= 512; dim += 8) {
    for (int half = 0; 2 * half <= dim; half += 8) {
      const int lanes = lanes_of_head(dim, half);
      ASSERT_GT(lanes, 0) << dim;
      std::vector<int> owner(static_cast<size_t>(dim), -1);
      const auto take = [&](int begin, int lane) {
        for (int i = begin; i < begin + 8 && begin < dim; ++i) {
          ASSERT_LT(i, dim);
          ASSERT_EQ(owner[static_cast<size_t>(i)], -1) << dim << " " << half << " " << i;
          owner[static_cast<size_t>(i)] = lane;
        }
      };
      for (int lane = 0; lane < lanes; ++lane) {
        const RunPair pair = run_pair(lane, dim, half);
        EXPECT_EQ(pair.is_rotated, lane < half / 8);
        if (pair.is_rotated) {
          EXPECT_EQ(pair.high, pair.low + half);
        }
        take(pair.low, lane);
        take(pair.high, lane);
      }
      for (int i = 0; i < dim; ++i) {
        ASSERT_NE(owner[static_cast<size_t>(i)], -1) << dim << " " << half << " " << i;
        EXPECT_EQ(run_pair(owner[static_cast<size_t>(i)], dim, half).is_rotated, i < 2 * half);
      }
    }
  }
}

TEST(QkvLayout, OddHeadsAreForTheGeneralKernel) {
  EXPECT_EQ(lanes_of_head(20, 0), 0);
  EXPECT_EQ(lanes_of_head(64, 10), 0);
  EXPECT_EQ(lanes_of_head(520, 0), 0);
}

TEST(QkvLayout, CacheIsDense) {
  constexpr int kBlocks = 3, kHeads = 2, kBlockSize = 4, kDim = 8;
  std::vector<bool> seen(size_t{kBlocks} * 2 * kHeads * kBlockSize);
  for (int slot = 0; slot < kBlocks * kBlockSize; ++slot) {
    for (int part = 0; part < 2; ++part) {
      for (int head = 0; head < kHeads; ++head) {
        const int64_t at = kv_offset(slot, part, head, kBlockSize, kHeads, kDim);
        ASSERT_EQ(at % kDim, 0);
        ASSERT_LT(at / kDim, static_cast<int64_t>(seen.size()));
        EXPECT_FALSE(seen[static_cast<size_t>(at / kDim)]);
        seen[static_cast<size_t>(at / kDim)] = true;
      }
    }
  }
  EXPECT_EQ(kv_offset(1, 0, 0, kBlockSize, kHeads, kDim), kDim);  // tokens are next to each other
  // Beyond 2^31 elements.
  EXPECT_EQ(kv_offset(int64_t{1} << 20, 0, 0, 16, 8, 128), (int64_t{1} << 16) * 2 * 8 * 16 * 128);
}

}  // namespace
}  // namespace rudder::cuda
