#include "rudder/fleet/replay_buffer.h"

#include <gtest/gtest.h>

namespace rudder::fleet {
namespace {

EventBatch stores(uint64_t hash) {
  return {.events = {{.hash = hash}}, .tokens = {static_cast<int32_t>(hash)}};
}

TEST(ReplayBuffer, FindsTheFirstThatIsNotBefore) {
  ReplayBuffer buffer(10, 1 << 20);
  EXPECT_EQ(buffer.at_or_after(0), nullptr);
  buffer.add(3, stores(3));
  buffer.add(4, stores(4));
  buffer.add(9, stores(9));
  EXPECT_EQ(buffer.at_or_after(0)->sequence, 3u);
  EXPECT_EQ(buffer.at_or_after(4)->batch.events[0].hash, 4u);
  EXPECT_EQ(buffer.at_or_after(5)->batch.events[0].hash, 9u);
  EXPECT_EQ(buffer.at_or_after(10), nullptr);
  EXPECT_EQ(buffer.at_or_after(UINT64_MAX), nullptr);
}

TEST(ReplayBuffer, IsBoundedInBatchesAndBytes) {
  ReplayBuffer few(3, 1 << 20);
  ReplayBuffer small(100, 3 * stores(0).bytes());
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_FALSE(few.is_full() || small.is_full());
    few.add(i, stores(i));
    small.add(i, stores(i));
  }
  EXPECT_TRUE(few.is_full() && small.is_full());
}

TEST(ReplayBuffer, BeginsAgainWithWhatIsHeld) {
  ReplayBuffer buffer(3, 1 << 20);
  buffer.add(0, stores(1));
  buffer.add(1, stores(2));
  buffer.add(2, {.events = {{.kind = BlockEvent::Kind::kRemoved, .hash = 1}}});
  const auto first = buffer.begin_again(1);
  ASSERT_EQ(first.size(), 1u);
  ASSERT_EQ(first[0].events.size(), 2u);
  EXPECT_EQ(first[0].events[0].kind, BlockEvent::Kind::kCleared);
  EXPECT_EQ(first[0].events[1].hash, 2u);
  EXPECT_EQ(first[0].tokens, std::vector<int32_t>{2});
  EXPECT_EQ(buffer.size(), 0u);
  buffer.add(0, first[0]);
  buffer.forget_size();
  EXPECT_FALSE(buffer.is_full());
}

}  // namespace
}  // namespace rudder::fleet
