// TypicalWait: quantiles by steps, what it begins with, and how what was is forgotten.
#include "rudder/sched/typical_wait.h"

#include <gtest/gtest.h>

namespace rudder::sched {
namespace {

TEST(TypicalWaitTest, ItBeginsWithStepsWithoutPrompts) {
  TypicalWait waits;
  EXPECT_NEAR(waits.quantile(0.4), 1, 0.02);
  for (int i = 0; i < 500; ++i) waits.add(3);  // the first burst of a server
  EXPECT_NEAR(waits.quantile(0.4), 1, 0.02);
  for (int i = 0; i < 500; ++i) waits.add(3);  // that does not end
  EXPECT_NEAR(waits.quantile(0.4), 3, 0.06);
}

TEST(TypicalWaitTest, WhatWasIsForgottenSoThatTheWeightNeverGrowsWithoutBound) {
  TypicalWait waits;
  for (int i = 0; i < 100'000; ++i) waits.add(1);
  for (int i = 0; i < 700; ++i) waits.add(3);
  EXPECT_NEAR(waits.quantile(0.4), 1, 0.02);  // the last 1,400 steps are half of all
  for (int i = 0; i < 400; ++i) waits.add(3);
  EXPECT_NEAR(waits.quantile(0.6), 3, 0.06);
}

TEST(TypicalWaitTest, AnyWaitHasABucket) {
  TypicalWait waits;
  for (int i = 0; i < 10'000; ++i) waits.add(1e-9);
  EXPECT_NEAR(waits.quantile(0.5), 0.03, 0.001);
  for (int i = 0; i < 20'000; ++i) waits.add(1e9);
  EXPECT_GT(waits.quantile(0.5), 500);
}

}  // namespace
}  // namespace rudder::sched
