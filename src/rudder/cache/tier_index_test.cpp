#include "rudder/cache/tier_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

namespace rudder::cache {
namespace {

constexpr TierIndex::Parts kState = 8;

TierKey key(uint64_t low) {
  return {low, 7};
}

TEST(TierIndex, ARecordIsFoundOnceItsBytesAreThere) {
  TierIndex index({.plain_placements = 2}, kState);
  ASSERT_TRUE(index.begin_fill(key(1), 3));
  EXPECT_EQ(index.find(key(1)).host, 0u);
  EXPECT_TRUE(index.check(1));
  index.end_fill(key(1), true);
  EXPECT_EQ(index.find(key(1)).host, 3u);
  EXPECT_FALSE(index.begin_fill(key(2), 3) && !index.begin_fill(key(3), 3));
  EXPECT_TRUE(index.check(2));
}

TEST(TierIndex, TheOneOfLongestAgoGoesUnlessItIsRead) {
  TierIndex index({.plain_placements = 2}, kState);
  for (uint64_t k = 1; k <= 2; ++k) {
    ASSERT_TRUE(index.begin_fill(key(k), 1));
    index.end_fill(key(k), true);
  }
  index.touch(key(1));
  static_cast<void>(index.pin(key(2)));
  ASSERT_TRUE(index.begin_fill(key(3), 1));
  EXPECT_EQ(index.find(key(1)).host, 0u);
  EXPECT_EQ(index.find(key(2)).host, 1u);
  EXPECT_FALSE(index.begin_fill(key(4), 1));  // one is read, one is filled
  index.end_fill(key(3), false);
  index.unpin(key(2), false);  // its bytes were bad
  EXPECT_EQ(index.find(key(2)).host, 0u);
  EXPECT_TRUE(index.check(0));
}

TEST(TierIndex, ACheckpointNeedsAPlaceWithRoomForIt) {
  TierIndex index({.plain_placements = 1, .stated_placements = 1}, kState);
  const std::optional<int32_t> stated = index.begin_fill(key(1), 1 | kState);
  ASSERT_TRUE(stated);
  EXPECT_EQ(*stated, 1);
  EXPECT_FALSE(index.begin_fill(key(2), kState));
  EXPECT_EQ(index.begin_fill(key(2), 1), std::optional<int32_t>(0));
}

TEST(TierIndex, FilesHaveSoManyBytesAndTheOldestGoes) {
  TierIndex index({.plain_placements = 1, .disk_bytes = 100}, kState);
  index.add_file(key(1), 1, 60);
  index.add_file(key(2), 1, 30);
  EXPECT_TRUE(index.take_lost().empty());
  ASSERT_TRUE(index.begin_write(key(3), 50));
  const auto lost = index.take_lost();
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_TRUE(lost[0].key == key(1) && lost[0].is_file);
  EXPECT_FALSE(index.begin_write(key(4), 101));
  EXPECT_EQ(index.find(key(3)).disk, 0u);
  index.end_write(key(3), 5, false);  // the disk is full
  EXPECT_EQ(index.counts().disk_bytes, 30);
  EXPECT_EQ(index.find(key(2)).disk, 1u);
  EXPECT_TRUE(index.check(0));
}

TEST(TierIndex, WhatIsForgottenOnTheWayIsNeverFound) {
  TierIndex index({.plain_placements = 2, .disk_bytes = 100}, kState);
  ASSERT_TRUE(index.begin_fill(key(1), 1));
  index.end_fill(key(1), true);
  ASSERT_TRUE(index.begin_write(key(1), 10));
  static_cast<void>(index.pin(key(1)));
  ASSERT_TRUE(index.begin_fill(key(2), 1));
  index.forget_all();
  EXPECT_TRUE(index.check(2));
  EXPECT_FALSE(index.begin_fill(key(2), 1));
  index.end_fill(key(2), true);
  index.unpin(key(1), true);
  index.end_write(key(1), 1, true);
  EXPECT_EQ(index.find(key(1)).best(), 0u);
  EXPECT_EQ(index.find(key(2)).best(), 0u);
  const auto lost = index.take_lost();
  EXPECT_TRUE(std::ranges::any_of(lost, [](const auto& one) { return one.is_file; }));
  EXPECT_TRUE(index.check(0));
}

}  // namespace
}  // namespace rudder::cache
