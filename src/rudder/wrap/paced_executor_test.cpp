// Time is measured from below alone: a busy machine only makes steps longer.
#include "rudder/wrap/paced_executor.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

namespace rudder::wrap {
namespace {

class InstantExecutor final : public step::Executor {
 public:
  step::Capacity capacity() const override { return {.num_blocks = 8, .max_seq_len = 64}; }
  Result<step::Ticket> launch(std::shared_ptr<const step::StepPlan> plan) override {
    return step::Ticket{plan->id};
  }
  Result<void> supply(step::Ticket /*ticket*/, std::span<const uint32_t> /*masks*/) override {
    return {};
  }
  Result<step::StepResult> collect(step::Ticket ticket) override {
    step::StepResult result;
    result.id = ticket.id;
    return result;
  }
  bool ready(step::Ticket /*ticket*/) override { return true; }
};

step::Ticket launch(PacedExecutor& executor, uint64_t id, int32_t repeat = 1) {
  auto plan = std::make_shared<step::StepPlan>();
  plan->id = id;
  plan->repeat = repeat;
  return *executor.launch(std::move(plan));
}

TEST(PacedExecutor, StepsInFlightEndOneAfterTheOther) {
  constexpr int64_t kStepUs = 5'000;
  PacedExecutor executor(std::make_unique<InstantExecutor>(), kStepUs);
  const SteadyClock clock;
  const int64_t begin_us = clock.now_us();
  const step::Ticket first = launch(executor, 1);
  const step::Ticket second = launch(executor, 2, 3);
  EXPECT_EQ(executor.collect(first)->id, 1u);
  EXPECT_GE(clock.now_us() - begin_us, kStepUs);
  for (int64_t iteration = 1; iteration <= 3; ++iteration) {
    EXPECT_EQ(executor.collect(second)->id, 2u);
    EXPECT_GE(clock.now_us() - begin_us, (1 + iteration) * kStepUs);
  }
}

TEST(PacedExecutor, AStepIsNotReadyBeforeItsTime) {
  constexpr int64_t kHourUs = int64_t{3'600'000'000};
  PacedExecutor executor(std::make_unique<InstantExecutor>(), kHourUs);
  EXPECT_FALSE(executor.ready(launch(executor, 1)));
  PacedExecutor quick(std::make_unique<InstantExecutor>(), 1);
  const step::Ticket ticket = launch(quick, 1);
  while (!quick.ready(ticket)) {
  }
  EXPECT_TRUE(quick.collect(ticket).has_value());
}

}  // namespace
}  // namespace rudder::wrap
