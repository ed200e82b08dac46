#include "rudder/exec/device_time.h"

#include <gtest/gtest.h>

namespace rudder::exec {
namespace {

TEST(DeviceTime, IsThatFromTheEndOfTheIterationBefore) {
  DeviceTime time;
  EXPECT_EQ(time.note({.start_us = 100, .enqueued_us = 150, .end_us = 1100}), 1000);
  EXPECT_EQ(time.note({.start_us = 200, .enqueued_us = 260, .end_us = 2000}), 900);
  EXPECT_EQ(time.note({.start_us = 2500, .enqueued_us = 2600, .end_us = 3000}), 500);
}

TEST(DeviceTime, IsNotKnownWhereNobodySawAnEnd) {
  DeviceTime time;
  const DeviceTime::Seen late = {
      .start_us = 100, .enqueued_us = 150, .end_us = 1100, .was_done = true};
  EXPECT_EQ(time.note(late), 0);
  EXPECT_EQ(time.note({.start_us = 120, .enqueued_us = 180, .end_us = 2100}), 0) << "nor a begin";
  EXPECT_EQ(time.note({.start_us = 1300, .enqueued_us = 1400, .end_us = 3100}), 1000);
}

TEST(DeviceTime, BeginsBehindGuesses) {
  DeviceTime time;
  EXPECT_EQ(time.note({.start_us = 100, .enqueued_us = 150, .end_us = 1100}), 1000);
  time.note_guesses(1430, true);
  EXPECT_EQ(time.note({.start_us = 210, .enqueued_us = 260, .end_us = 2000}), 570);
  time.note_guesses(2300, false);
  EXPECT_EQ(time.note({.start_us = 1210, .enqueued_us = 1260, .end_us = 3000}), 0) << "no begin";
}

TEST(DeviceTime, IsNoMeasureWhereSomethingWasPaidOnce) {
  DeviceTime time;
  EXPECT_EQ(time.note({.start_us = 100, .enqueued_us = 5000, .end_us = 6000, .was_set_up = true}),
            0);
  EXPECT_EQ(time.note({.start_us = 5100, .enqueued_us = 5200, .end_us = 7000}), 1000);
}

}  // namespace
}  // namespace rudder::exec
