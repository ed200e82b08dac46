// TypicalWait: quantiles by tokens, and how what was is forgotten.
#include "rudder/sched/typical_wait.h"

#include <gtest/gtest.h>

namespace rudder::sched {
namespace {

TEST(TypicalWaitTest, QuantilesAreOfTokensNotOfSteps) {
  TypicalWait waits;
  EXPECT_TRUE(waits.is_empty());
  EXPECT_EQ(waits.quantile(0.5), 0);
  for (int i = 0; i < 10; ++i) waits.add(4'000, 32);
  EXPECT_NEAR(waits.quantile(0.4), 4'000, 80);
  waits.add(12'000, 512);  // one step; three fifths of the tokens
  EXPECT_NEAR(waits.quantile(0.3), 4'000, 80);
  EXPECT_NEAR(waits.quantile(0.4), 12'000, 240);
}

TEST(TypicalWaitTest, WhatWasIsForgottenSoThatTheWeightNeverGrowsWithoutBound) {
  TypicalWait waits;
  for (int i = 0; i < 100'000; ++i) waits.add(4'000, 100);
  for (int i = 0; i < 700; ++i) waits.add(12'000, 100);
  EXPECT_NEAR(waits.quantile(0.4), 4'000, 80);  // the last 1,400 steps are half of all
  for (int i = 0; i < 400; ++i) waits.add(12'000, 100);
  EXPECT_NEAR(waits.quantile(0.6), 12'000, 240);
}

TEST(TypicalWaitTest, AnyWaitHasABucket) {
  TypicalWait waits;
  waits.add(0.1, 1);
  EXPECT_NEAR(waits.quantile(0.5), 1, 0.02);
  for (int i = 0; i < 10; ++i) waits.add(1e9, 1);
  EXPECT_GT(waits.quantile(0.5), 4e7);
}

}  // namespace
}  // namespace rudder::sched
