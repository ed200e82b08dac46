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
  link.report();
  link.report();
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

TEST(StageLink, EachMessageHasMemoryOfItsOwn) {
  StageLink link(3, 2);
  link.allocate_hidden(0, 100);
  link.allocate_hidden(1, 50);
  link.allocate_sampled(20);
  EXPECT_EQ(link.hidden(0, 1).bytes(), 100u);
  EXPECT_EQ(link.hidden(1, 0).bytes(), 50u);
  EXPECT_EQ(link.sampled(1).bytes.bytes(), 20u);
  EXPECT_NE(link.hidden(0, 0).data, link.hidden(0, 1).data);
  EXPECT_NE(link.sampled(0).bytes.data, link.sampled(1).bytes.data);
}

}  // namespace
}  // namespace rudder::exec
