#include "rudder/engine/step_watch.h"

#include <gtest/gtest.h>

namespace rudder::engine {
namespace {

constexpr int64_t kStuckUs = 5'000'000;

step::StepPlan plan_of_two() {
  step::StepPlan plan;
  plan.id = 7;
  plan.seqs.resize(2);
  plan.seqs[0].q_len = 33;
  plan.seqs[1].q_len = 3;
  plan.seqs[1].num_draft = 2;
  plan.seqs[1].constrained = true;
  return plan;
}

TEST(StepWatch, SaysWhatTheStepWasThatDoesNotEnd) {
  StepWatch watch;
  watch.busy(1'000'000, "waiting for", facts_of(plan_of_two()));
  EXPECT_TRUE(watch.health(1'000'000 + kStuckUs - 1, kStuckUs));
  const Result<void> health = watch.health(1'000'000 + kStuckUs, kStuckUs);
  ASSERT_FALSE(health);
  EXPECT_EQ(health.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(health.error().message,
            "the engine makes no progress: waiting for step 7 of 36 tokens of 2 sequences (1 with "
            "prompts, 1 constrained), 1 iteration for 5000 ms");
  watch.busy(6'500'000, "handing out what came of", facts_of(plan_of_two()));
  EXPECT_TRUE(watch.health(6'500'000, kStuckUs)) << "it goes on";
}

TEST(StepWatch, AnIdleLoopThatSaysNothingIsNotHealthy) {
  StepWatch watch;
  watch.idle(0);
  EXPECT_TRUE(watch.health(999'999, kStuckUs));
  ASSERT_FALSE(watch.health(1'000'000, kStuckUs));
  watch.idle(1'000'000);
  EXPECT_TRUE(watch.health(1'000'000, kStuckUs));
}

}  // namespace
}  // namespace rudder::engine
