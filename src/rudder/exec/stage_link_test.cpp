#include "rudder/exec/stage_link.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace rudder::exec {
namespace {

TEST(StageLink, AStageWaitsForTheIterationsOfTheOneBefore) {
  StageLink link(3, 2);
  std::atomic<bool> came = false;
  std::thread waits([&] {
    EXPECT_TRUE(link.await(0, 2));
    came = true;
  });
  link.hand_over(0);
  link.hand_over(1);
  link.hand_over(1);
  EXPECT_FALSE(came);
  link.hand_over(0);
  waits.join();
  EXPECT_TRUE(came);
  link.hand_back();
  link.hand_back();
  EXPECT_EQ(link.await_reports(1).value(), 2u);
}

TEST(StageLink, AFailureEndsEveryWaitAndTheFirstCounts) {
  StageLink link(2, 2);
  Result<void> waited;
  std::thread waits([&] { waited = link.await(0, 1); });
  link.fail({ErrorCode::kOverloaded, "no memory", ""});
  link.fail({ErrorCode::kInternal, "what followed", ""});
  waits.join();
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.error().message, "no memory");
  EXPECT_FALSE(link.await_reports(0));
}

TEST(StageLink, WhoLooksFindsThatNothingGoesOn) {
  StageLink link(3, 2, 10 * StageLink::kLookMs);
  std::atomic<uint64_t> work = 0;
  link.watch(1, [&] { return work.load(); });
  link.begin(1);
  const auto looks = [&](int32_t count) {
    for (int32_t i = 0; i < count; ++i) {
      if (!link.look()) return false;
    }
    return true;
  };
  EXPECT_TRUE(looks(9));
  link.hand_over(0);
  EXPECT_TRUE(looks(9));
  ++work;  // long, but it goes on
  EXPECT_TRUE(looks(10));
  const Result<void> still = link.look();
  ASSERT_FALSE(still);
  EXPECT_EQ(still.error().message, "stage 1 of 3 stood still for 200 ms");
  EXPECT_EQ(still.error().where, "pipeline-parallel-size");
  EXPECT_FALSE(link.await_reports(1)) << "it ends every wait";
}

// Of a device that has not come to the end of what is enqueued.
struct PendingMessage final : ops::HostMessage {
  explicit PendingMessage(bool arrives) : HostMessage(64), has_come(arrives) {}
  bool has_arrived() override { return has_come; }

  const bool has_come;
};

TEST(StageLink, WhereAllIsEnqueuedTheFirstStageWhoseDeviceHasNotComeToItsEndStandsStill) {
  StageLink link(3, 2, 2 * StageLink::kLookMs);
  for (int32_t stage = 0; stage < 3; ++stage) {
    StageLink::Messages messages;
    for (int32_t flight = 0; flight < 2; ++flight) {
      messages.push_back(std::make_unique<PendingMessage>(stage == 0 || flight == 0));
    }
    link.add_messages(stage, std::move(messages));
    link.begin(stage);
    if (stage < 2) link.hand_over(stage);
  }
  link.hand_back();
  EXPECT_TRUE(link.look());
  EXPECT_TRUE(link.look());
  const Result<void> still = link.look();
  ASSERT_FALSE(still);
  EXPECT_EQ(still.error().message, "stage 1 of 3 stood still for 40 ms");
}

TEST(StageLink, EachMessageHasMemoryOfItsOwn) {
  StageLink link(2, 2);
  for (int32_t stage = 0; stage < 2; ++stage) {
    StageLink::Messages messages;
    messages.push_back(std::make_unique<ops::HostMessage>(100 - 50 * stage));
    messages.push_back(std::make_unique<ops::HostMessage>(100 - 50 * stage));
    link.add_messages(stage, std::move(messages));
  }
  EXPECT_EQ(link.hidden(0, 1).memory().bytes(), 100u);
  EXPECT_EQ(link.report(0).message->memory().bytes(), 50u);
  EXPECT_NE(link.hidden(0, 0).memory().data, link.hidden(0, 1).memory().data);
  EXPECT_NE(link.report(0).message, link.report(1).message);
}

}  // namespace
}  // namespace rudder::exec
