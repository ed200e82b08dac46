#include "rudder/sched/pace.h"

#include <gtest/gtest.h>

#include "rudder/sched/settings.h"

namespace rudder::sched {
namespace {

constexpr StepShape kDecodes = {.decode_tokens = 8, .decode_keys = 8000};
constexpr int32_t kMost = 2048;

class PaceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 100; ++i) {
      see(kDecodes);
      StepShape with_prompt = kDecodes;
      with_prompt.add_prompt(0, 64 * (1 + i % 32));
      see(with_prompt);
    }
  }
  void see(const StepShape& shape) {
    const int64_t us = 3000 + 200 * shape.decode_tokens + shape.decode_keys / 10 +
                       (shape.prompt_tokens > 0 ? 1000 + 10 * shape.prompt_tokens : 0);
    cost_.observe(shape, us);
    pace_.observe(shape, us);
  }

  StepCost cost_;
  Pace pace_{kAutoItlBound, cost_};
};

// Where the mean of those that wait finds no room, a shorter one may all the same, and streams from
// its first step on.
TEST_F(PaceTest, NoFewerAreExpectedThanAStepHas) {
  pace_.expect(kDecodes);
  const int32_t room = pace_.tokens_within(kDecodes, 0, kMost);
  EXPECT_GT(room, 64);
  EXPECT_LT(room, kMost);
  pace_.expect({});
  EXPECT_EQ(pace_.tokens_within(kDecodes, 0, kMost), room);
  pace_.expect({.decode_tokens = 1, .decode_keys = 10});
  EXPECT_EQ(pace_.tokens_within(kDecodes, 0, kMost), room);
}

}  // namespace
}  // namespace rudder::sched
