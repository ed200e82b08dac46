#include "rudder/server/stall_report.h"

#include <gtest/gtest.h>

namespace rudder::server {
namespace {

std::vector<engine::ReplicaState> two_replicas(bool second_stands) {
  std::vector<engine::ReplicaState> replicas(2);
  if (second_stands) replicas[1].health = fail(ErrorCode::kUnavailable, "it stands still");
  return replicas;
}

TEST(StallReport, EachStallIsToldOnceAndThreadsNotTooOften) {
  StallReport report;
  report.look(two_replicas(false), 0);
  EXPECT_EQ(report.num_told(), 0);
  for (int64_t now_us = 250'000; now_us < 2'000'000; now_us += 250'000) {
    report.look(two_replicas(true), now_us);
    EXPECT_EQ(report.num_told(), 1);
  }
  report.look(two_replicas(false), 2'000'000);
  report.look(two_replicas(true), 3'000'000);
  EXPECT_EQ(report.num_told(), 1) << "so soon after the first";
  report.look(two_replicas(false), 4'000'000);
  report.look(two_replicas(true), 3'000'000 + StallReport::kPeriodUs);
  EXPECT_EQ(report.num_told(), 2);
}

TEST(StallReport, ADeadReplicaIsNoStall) {
  StallReport report;
  std::vector<engine::ReplicaState> replicas(1);
  replicas[0].health = fail(ErrorCode::kInternal, "the engine has failed");
  report.look(replicas, 0);
  EXPECT_EQ(report.num_told(), 0);
}

}  // namespace
}  // namespace rudder::server
