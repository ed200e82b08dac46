// Where chunks of runs and parts of their records lie.
#include "rudder/cuda/kernels/states/chunks.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace rudder::cuda {
namespace {

TEST(Chunks, EachChunkOfAStepHasASlotOfItsOwn) {
  std::mt19937 random(7);
  for (int step = 0; step < 500; ++step) {
    std::set<int32_t> slots;
    int32_t begin = 0;
    size_t chunks = 0;
    for (uint32_t run = 0; run < 1 + random() % 40; ++run) {
      const auto length =
          static_cast<int32_t>(random() % 3 == 0 ? 1 + random() % 300 : 62 + random() % 6);
      for (int32_t at = 0; length >= kLeastRun && at < length; at += kChunk) {
        slots.insert(chunk_slot(begin + at, at == 0));
        ++chunks;
      }
      begin += length;
    }
    EXPECT_EQ(slots.size(), chunks);
    if (!slots.empty()) {
      EXPECT_GE(*slots.begin(), 0);
      EXPECT_LT(*slots.rbegin(), chunk_slots(begin));
    }
  }
}

TEST(Chunks, UnitsOfARecordFillIt) {
  std::set<int32_t> solved;
  for (int32_t n = 0; n < 8; ++n) {
    for (int32_t k = 0; k <= n / 2; ++k) solved.insert(ChunkRecord::solved_unit(n, k));
  }
  std::set<int32_t> mixed;
  for (int32_t n = 0; n < 4; ++n) {
    for (int32_t k = 0; k <= n; ++k) mixed.insert(ChunkRecord::mixed_unit(n, k));
  }
  EXPECT_EQ(static_cast<int32_t>(solved.size()), ChunkRecord::kSolvedUnits);
  EXPECT_EQ(*solved.rbegin(), ChunkRecord::kSolvedUnits - 1);
  EXPECT_EQ(static_cast<int32_t>(mixed.size()), ChunkRecord::kMixedUnits);
  EXPECT_EQ(*mixed.rbegin(), ChunkRecord::kMixedUnits - 1);
  EXPECT_EQ(ChunkRecord::kBytes % 128, 0);
}

}  // namespace
}  // namespace rudder::cuda
