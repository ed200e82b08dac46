#include "rudder/sched/prompt_bound.h"

#include <gtest/gtest.h>

#include "rudder/sched/settings.h"

namespace rudder::sched {
namespace {

constexpr StepShape kDecodes = {.decode_tokens = 8, .decode_keys = 8000};
constexpr int32_t kMost = 2048;

class PromptBoundTest : public ::testing::Test {
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
    bound_.observe(shape, us, 1);
  }

  // Prompt tokens that a step of kDecodes may have when these had such prompts, and have answers of
  // 100 tokens.
  int32_t room(const StepShape& expected, int64_t prompt_len) {
    Turnover turnover;
    for (int i = 0; i < kDecodes.decode_tokens; ++i) turnover.add(prompt_len, 0, 100);
    bound_.begin_step(kDecodes, expected, turnover, {}, kMost);
    return bound_.tokens_within(kDecodes, 0, kMost);
  }

  StepCost cost_;
  PromptBound bound_{kAutoItlBound, cost_};
};

// Where the mean of those that wait finds no room, a shorter one may all the same, and streams from
// its first step on.
TEST_F(PromptBoundTest, NoFewerAreExpectedThanAStepHas) {
  const int32_t usual = room(kDecodes, 100);
  EXPECT_GT(usual, 64);
  EXPECT_LT(usual, kMost);
  EXPECT_EQ(room({}, 100), usual);
  EXPECT_EQ(room({.decode_tokens = 1, .decode_keys = 10}, 100), usual);
}

// A step without prompts takes 5.4 ms; the bound has room for about 600 tokens. As many must come
// in half of the steps; from two thirds of them on, what waits takes a tenth longer than in full
// steps, and more yet is let in where prompts would be in more than 60 % of the steps all the same.
TEST_F(PromptBoundTest, TheBoundYieldsWherePromptsWouldNotGetThrough) {
  const int32_t usual = room(kDecodes, 100);
  EXPECT_EQ(room(kDecodes, 2000), usual);
  int32_t before = usual;
  for (int64_t prompt_len = 4000; prompt_len <= 20'000; prompt_len += 1000) {
    const int32_t now = room(kDecodes, prompt_len);
    EXPECT_GE(now, before) << prompt_len;
    before = now;
  }
  EXPECT_EQ(before, kMost);
}

// Those that wait will be followed too; those that stream say by what.
TEST_F(PromptBoundTest, WhoWaitsCountsAsMuchAsWhoStreams) {
  const int32_t usual = room(kDecodes, 2000);
  const StepShape many = {.decode_tokens = 64, .decode_keys = 64'000};
  EXPECT_GT(room(many, 2000), 2 * usual);
  Turnover nothing;
  bound_.begin_step(kDecodes, kDecodes, nothing, {}, kMost);
  EXPECT_EQ(bound_.tokens_within(kDecodes, 0, kMost), usual);
}

// Drafts that are right end answers in fewer steps.
TEST_F(PromptBoundTest, WhatDraftsGainBringsMorePrompts) {
  const int32_t usual = room(kDecodes, 2000);
  for (int i = 0; i < 1000; ++i) bound_.observe(kDecodes, 5400, 3);
  EXPECT_GT(room(kDecodes, 2000), 2 * usual);
}

TEST_F(PromptBoundTest, WhatIsCachedDoesNotCome) {
  Turnover turnover;
  turnover.add(1000, 900, 50);
  EXPECT_EQ(turnover.num_streams, 1);
  EXPECT_DOUBLE_EQ(turnover.prompt_tokens, 2);
  EXPECT_DOUBLE_EQ(turnover.prompt_pairs, 2 * 950);
}

// A step with prompts takes 6.4 ms, and 10 us for each token of them: by the bound one of 64,000
// tokens takes half a second longer than in full steps, and a longer one would take many.
TEST_F(PromptBoundTest, ALongPromptIsASecondLaterAtMost) {
  const int32_t usual = room(kDecodes, 100);
  Turnover turnover;
  turnover.add(100, 0, 100);
  const auto room_of = [&](int64_t tokens) {
    bound_.begin_step(kDecodes, kDecodes, turnover, {.tokens = tokens, .computed = 0}, kMost);
    return bound_.tokens_within(kDecodes, 0, kMost);
  };
  EXPECT_EQ(room_of(64'000), usual);
  for (const int64_t tokens : {300'000, 600'000, 2'000'000}) {
    const int32_t in_a_step = room_of(tokens);
    EXPECT_GT(in_a_step, usual);
    const double later_s = 6.4e-3 * static_cast<double>(tokens) * (1.0 / in_a_step - 1.0 / kMost);
    EXPECT_LE(later_s, 1.05) << tokens;
    EXPECT_GE(later_s, 0.8) << tokens;
  }
}

// A bound in milliseconds never yields.
TEST_F(PromptBoundTest, AGivenBoundIsKept) {
  PromptBound given(10'000, cost_);
  Turnover turnover;
  turnover.add(100'000, 0, 1);
  given.begin_step(kDecodes, kDecodes, turnover, {.tokens = 1'000'000}, kMost);
  EXPECT_LT(given.tokens_within(kDecodes, 0, kMost), 500);
}

}  // namespace
}  // namespace rudder::sched
