// Prompts of one tenant: a short one does not wait for a long one, and the long one gets on
// (step.I16). Random loads are stress_test.cpp's.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "rudder/testing/load_model.h"
#include "rudder/testing/sched_loop.h"

namespace rudder::sched {
namespace {

using testing::LoadModel;
using testing::SchedLoop;
using testing::test_prompt;
using testing::test_sequence;

constexpr int32_t kStepTokens = 512;

SchedSettings short_settings(int32_t budget) {
  SchedSettings settings;
  settings.max_num_seqs = 64;
  settings.max_num_batched_tokens = budget;
  settings.enable_prefix_caching = false;
  settings.model_identity = "model";
  return settings;
}

testing::FakeOptions short_fake(int32_t num_blocks = 10'000) {
  testing::FakeOptions fake;
  fake.capacity = {.num_slots = 64,
                   .num_blocks = num_blocks,
                   .block_size = 16,
                   .max_tokens_per_step = kStepTokens,
                   .max_seq_len = 20'000,
                   .vocab_size = 1000,
                   .max_in_flight = 2};
  return fake;
}

// The step that gives the first token of a prompt of `len` while prompts of `short_len` never stop
// coming, `per_step` of them in each step.
step::StepId steps_beside_short_ones(int32_t budget, int32_t len, int32_t short_len,
                                     int32_t per_step) {
  LoadModel model(short_fake().capacity, short_settings(budget),
                  [](const step::StepPlan&) { return 1000; });
  model.add(test_sequence(1, test_prompt(len, 1), 1));
  for (uint64_t id = 2; model.served(1).token_us.empty();) {
    for (int32_t i = 0; i < per_step && model.scheduler().stats().num_waiting < 40; ++i, ++id) {
      model.add(test_sequence(id, test_prompt(short_len, static_cast<int32_t>(id)), 1));
    }
    model.turn();
  }
  return model.served(1).token_step;
}

TEST(ShortPromptsTest, TheFirstHasHalf) {
  for (const int32_t short_len : {20, 300, 2000}) {
    const auto steps =
        static_cast<int64_t>(steps_beside_short_ones(kStepTokens, 16'000, short_len, 30));
    const int64_t half = 2 * 16'000 / kStepTokens;
    EXPECT_LE(steps, half + 1) << short_len;
    EXPECT_GE(steps, half - 3) << short_len;
  }
  // What they leave is for it.
  EXPECT_LE(steps_beside_short_ones(kStepTokens, 16'000, 20, 1), 16'000u / (kStepTokens - 20) + 2);
}

// Too small to be shared: every other step.
TEST(ShortPromptsTest, TheyTakeTurnsInSmallSteps) {
  const auto steps = static_cast<int64_t>(steps_beside_short_ones(24, 2400, 24, 3));
  EXPECT_NEAR(static_cast<double>(steps), 2 * 2400 / 24, 4);
}

// As if there were no such rule.
TEST(ShortPromptsTest, EqualOnesRunInTheOrderInWhichTheyCame) {
  for (const int32_t len : {100, 300, 1000, 5000}) {
    SchedLoop loop(short_fake(), short_settings(kStepTokens));
    constexpr int32_t kPrompts = 12;
    for (uint64_t id = 1; id <= kPrompts; ++id) {
      loop.add(test_sequence(id, test_prompt(len, static_cast<int32_t>(id)), 3));
    }
    ASSERT_EQ(loop.run(), "");
    std::vector<int32_t> rest(kPrompts, len);
    std::map<int32_t, size_t> prompt_of_slot;
    size_t num_begun = 0;
    for (const auto& plan : loop.plans()) {
      for (const step::SlotEdit& edit : plan->slots) prompt_of_slot[edit.slot.value] = num_begun++;
      int32_t room = kStepTokens;
      for (const step::SeqWork& work : plan->seqs) {
        if (work.tokens == step::TokenSource::kCarry) room -= work.q_len;
      }
      std::vector<int32_t> expected(kPrompts, 0);
      for (size_t i = 0; i < kPrompts; ++i) {
        expected[i] = std::min(rest[i], room);
        room -= expected[i];
      }
      std::vector<int32_t> planned(kPrompts, 0);
      for (const step::SeqWork& work : plan->seqs) {
        if (work.tokens == step::TokenSource::kCarry) continue;
        planned[prompt_of_slot.at(work.slot.value)] = work.q_len;
      }
      ASSERT_EQ(planned, expected) << len << ", step " << plan->id;
      for (size_t i = 0; i < kPrompts; ++i) rest[i] -= planned[i];
    }
  }
}

// The long one's blocks are promised to it: short ones wait for room, and nobody is preempted.
TEST(ShortPromptsTest, ShortOnesLeaveTheLongOneItsBlocks) {
  SchedLoop loop(short_fake(16'000 / 16 + 40), short_settings(kStepTokens));
  loop.add(test_sequence(1, test_prompt(16'000, 1), 40));
  for (uint64_t id = 2; id <= 40; ++id) {
    loop.turn();
    loop.add(test_sequence(id, test_prompt(60, static_cast<int32_t>(id)), 4));
  }
  ASSERT_EQ(loop.run(), "");
  EXPECT_EQ(loop.scheduler().stats().preemptions, 0u);
  EXPECT_LE(loop.record(1).first_step, 1u);
}

// There is not room for all: who came first begins first, however long it is, but for small ones.
TEST(ShortPromptsTest, RoomIsGivenInTheOrderInWhichTheyCame) {
  SchedLoop loop(short_fake(300), short_settings(kStepTokens));
  loop.add(test_sequence(1, test_prompt(3000, 1), 100));
  for (uint64_t id = 2; id <= 20; ++id) {
    loop.add(
        test_sequence(id, test_prompt(id % 2 == 0 ? 2000 : 200, static_cast<int32_t>(id)), 20));
  }
  ASSERT_EQ(loop.run(), "");
  EXPECT_TRUE(std::ranges::is_sorted(loop.first_planned()));
}

// Who was preempted in its answer goes on before shorter prompts begin.
TEST(ShortPromptsTest, AnAnswerGoesOnFirst) {
  testing::FakeOptions fake = short_fake(40);
  SchedLoop loop(fake, short_settings(64));
  loop.add(test_sequence(1, test_prompt(200, 1), 200));
  loop.add(test_sequence(2, test_prompt(150, 2), 200));
  while (loop.scheduler().stats().preemptions == 0) ASSERT_TRUE(loop.turn());
  const size_t preempted_at = loop.plans().size();
  for (uint64_t id = 3; id <= 8; ++id) loop.add(test_sequence(id, test_prompt(20, 3), 2));
  ASSERT_EQ(loop.run(), "");
  for (size_t i = preempted_at; i < loop.plans().size(); ++i) {
    const std::vector<step::SlotEdit>& opened = loop.plans()[i]->slots;
    if (opened.empty()) continue;
    EXPECT_GT(opened.front().num_output, 0);
    break;
  }
}

}  // namespace
}  // namespace rudder::sched
