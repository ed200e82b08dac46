#include "rudder/server/vitals.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace rudder::server {
namespace {

class VitalsTest : public ::testing::Test {
 protected:
  VitalsTest() {
    vitals_.add("the first", [this] { return first_; });
    vitals_.add("the second", [this] { return second_; });
  }

  // How many ticks it takes until it is over; `most` where it is not.
  int32_t ticks(bool exerts, int32_t most) {
    for (int32_t i = 1; i < most; ++i) {
      const Result<void> ticked = vitals_.tick([&] { return exerts; });
      if (ticked) continue;
      message_ = ticked.error().message;
      return i;
    }
    return most;
  }

  Vitals vitals_;
  bool first_ = false, second_ = false;
  std::string message_;
};

TEST_F(VitalsTest, WhatGoesOnIsNeverOver) {
  EXPECT_EQ(ticks(false, 10'000), 10'000);
}

TEST_F(VitalsTest, WhatStandsStillIsOverAndNamed) {
  second_ = true;
  EXPECT_EQ(ticks(false, 10'000), Vitals::kPatience);
  EXPECT_EQ(message_, "the second stands still");
}

TEST_F(VitalsTest, WhileTheProcessExertsItselfItHasLonger) {
  first_ = true;
  EXPECT_EQ(ticks(true, 10'000), Vitals::kExertedPatience);
}

TEST_F(VitalsTest, ASignOfLifeBeginsAnew) {
  for (int i = 0; i < 10; ++i) {
    first_ = true;
    EXPECT_EQ(ticks(false, Vitals::kPatience), Vitals::kPatience);
    first_ = false;
    EXPECT_EQ(ticks(false, 2), 2);
  }
}

TEST(Exertion, IsWhatComputesReadsOrWantsACore) {
  Exertion exertion;
  Exertion::Readings readings = {.now_us = 1'000'000, .cpu_us = 700'000, .major_faults = 9};
  exertion.look(readings);
  readings.now_us += 50'000;
  readings.cpu_us += 24'999;
  EXPECT_FALSE(exertion.look(readings)) << "it had less than half of a core";
  readings.now_us += 50'000;
  readings.cpu_us += 25'000;
  EXPECT_TRUE(exertion.look(readings)) << "it had half of a core";
  readings.now_us += 50'000;
  ++readings.major_faults;
  EXPECT_TRUE(exertion.look(readings)) << "it waited for a page";
  readings.now_us += 50'000;
  readings.starves = true;
  EXPECT_TRUE(exertion.look(readings)) << "a thread of it waited for a core";
  readings.now_us += 50'000;
  readings.starves = false;
  EXPECT_FALSE(exertion.look(readings)) << "it slept";
}

TEST(Exertion, AProcessThatComputesExertsItself) {
  Exertion exertion;
  exertion.look();
  // It computes all the time; where others take the cores, it wants one and gets too little.
  std::atomic<bool> stop = false;
  std::thread other([&] {
    while (!stop) {
    }
  });
  int seen = 0;
  for (int i = 0; i < 200 && seen < 4; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    seen += exertion.look() ? 1 : 0;
  }
  stop = true;
  other.join();
  EXPECT_GE(seen, 4);
}

}  // namespace
}  // namespace rudder::server
