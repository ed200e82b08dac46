#include "rudder/server/idle_trim.h"

#include <gtest/gtest.h>

namespace rudder::server {
namespace {

TEST(IdleTrimTest, TrimsOnceInTheFirstQuietPeriodBehindWork) {
  IdleTrim trim;
  EXPECT_FALSE(trim.tick(1'500'000));  // the start
  EXPECT_TRUE(trim.tick(1'501'000));
  EXPECT_FALSE(trim.tick(1'502'000));
  EXPECT_FALSE(trim.tick(2'300'000));  // a burst of two periods
  EXPECT_FALSE(trim.tick(3'300'000));
  EXPECT_TRUE(trim.tick(3'310'000));
  EXPECT_FALSE(trim.tick(3'340'000));  // the trim itself
  EXPECT_FALSE(trim.tick(3'341'000));
}

TEST(IdleTrimTest, LittleWorkCountsOnceItHasAddedUp) {
  IdleTrim trim;
  int64_t cpu_us = 0;
  int trims = 0;
  for (int period = 0; period < 100; ++period) {
    cpu_us += 5'000;  // somebody reads /metrics
    trims += trim.tick(cpu_us) ? 1 : 0;
  }
  EXPECT_EQ(trims, 2);
}

}  // namespace
}  // namespace rudder::server
