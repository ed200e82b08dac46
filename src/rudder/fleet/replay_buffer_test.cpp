#include "rudder/fleet/replay_buffer.h"

#include <gtest/gtest.h>

namespace rudder::fleet {
namespace {

TEST(ReplayBuffer, FindsTheFirstThatIsNotBefore) {
  ReplayBuffer buffer(10, 1000);
  EXPECT_EQ(buffer.at_or_after(0), nullptr);
  buffer.add(3, "c");
  buffer.add(4, "d");
  buffer.add(9, "j");
  EXPECT_EQ(buffer.at_or_after(0)->payload, "c");
  EXPECT_EQ(buffer.at_or_after(4)->payload, "d");
  EXPECT_EQ(buffer.at_or_after(5)->payload, "j");
  EXPECT_EQ(buffer.at_or_after(10), nullptr);
  EXPECT_EQ(buffer.at_or_after(UINT64_MAX), nullptr);
}

TEST(ReplayBuffer, IsBoundedInBatchesAndBytes) {
  ReplayBuffer few(2, 1000);
  for (uint64_t i = 0; i < 5; ++i) few.add(i, "x");
  EXPECT_EQ(few.size(), 2u);
  EXPECT_EQ(few.at_or_after(0)->sequence, 3u);
  ReplayBuffer small(100, 10);
  for (uint64_t i = 0; i < 5; ++i) small.add(i, "xxxx");
  EXPECT_EQ(small.size(), 2u);
  small.add(5, std::string(11, 'x'));
  EXPECT_EQ(small.size(), 0u);
  small.add(6, "y");
  EXPECT_EQ(small.at_or_after(0)->payload, "y");
}

}  // namespace
}  // namespace rudder::fleet
