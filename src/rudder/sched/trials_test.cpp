// Trials: which steps they are, and that a scheduler serves as ever behind them.
#include "rudder/sched/trials.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <vector>

#include "rudder/sched/scheduler.h"

namespace rudder::sched {
namespace {

constexpr int32_t kSlots = 64;

step::Capacity capacity(int32_t num_blocks) {
  return {.num_slots = kSlots,
          .num_blocks = num_blocks,
          .block_size = 16,
          .max_tokens_per_step = 512,
          .max_seq_len = 2048,
          .vocab_size = 100,
          .max_in_flight = 2};
}

std::vector<step::StepPlan> all_plans(Trials& trials, int64_t us) {
  std::vector<uint32_t> generations(kSlots, 0);
  std::vector<step::StepPlan> plans;
  while (!trials.is_over()) {
    trials.add_next(plans.emplace_back(), generations);
    trials.note(us);
  }
  return plans;
}

TEST(TrialsTest, DecodesOfMoreAndMoreSequencesThenPrompts) {
  Trials trials(capacity(20'000), kSlots, 512);
  std::vector<std::pair<size_t, int32_t>> shapes;
  for (const step::StepPlan& plan : all_plans(trials, 1)) {
    const std::pair shape(plan.seqs.size(), plan.seqs[0].kv_len + plan.seqs[0].q_len);
    if (shapes.empty() || shapes.back() != shape) shapes.push_back(shape);
  }
  const std::vector<std::pair<size_t, int32_t>> expected = {
      {1, 2},  {1, 2047},  {4, 2},  {4, 2047}, {16, 2},  {16, 2047},
      {64, 2}, {64, 2047}, {1, 64}, {1, 128},  {1, 256}, {1, 512}};
  EXPECT_EQ(shapes, expected);
}

TEST(TrialsTest, NoTwoSequencesHaveABlockAndNoneIsMissing) {
  for (const int32_t num_blocks : {1, 40, 64, 100, 700, 20'000}) {
    Trials trials(capacity(num_blocks), kSlots, 512);
    for (const step::StepPlan& plan : all_plans(trials, 1)) {
      std::set<int32_t> blocks;
      size_t named = 0;
      for (size_t i = 0; i < plan.seqs.size(); ++i) {
        const step::GroupTable& table = plan.slots[i].blocks.at(0);
        named += table.size();
        for (const step::BlockId block : table) blocks.insert(block);
        EXPECT_GE(std::ssize(table) * 16, plan.seqs[i].kv_len + plan.seqs[i].q_len);
      }
      EXPECT_EQ(blocks.size(), named);
      EXPECT_LT(*blocks.rbegin(), num_blocks);
      EXPECT_LE(plan.num_tokens(), 512);
    }
  }
}

// Of layers that keep states each sequence of a trial has one of its own, as far as there are any.
TEST(TrialsTest, SequencesHaveStatesWhereThereAreAny) {
  for (const int32_t num_states : {0, 3, kSlots + 5}) {
    step::Capacity of_states = capacity(20'000);
    of_states.states.count = num_states;
    Trials trials(of_states, kSlots, 512);
    size_t most = 0;
    for (const step::StepPlan& plan : all_plans(trials, 10)) {
      most = std::max(most, plan.slots.size());
      for (size_t i = 0; i < plan.slots.size(); ++i) {
        EXPECT_EQ(plan.slots[i].state, num_states == 0 ? step::kNoState : static_cast<int32_t>(i));
        EXPECT_LT(plan.slots[i].state, std::max(num_states, 1));
      }
    }
    EXPECT_EQ(most, num_states == 3 ? 1u : size_t{kSlots});
  }
}

TEST(TrialsTest, ASlowDeviceRunsFew) {
  Trials trials(capacity(20'000), kSlots, 512);
  EXPECT_LE(all_plans(trials, 200'000).size(), 3u);
}

TEST(TrialsTest, NothingIsLearntOfTheFirstOfAShape) {
  Trials trials(capacity(20'000), kSlots, 512);
  std::vector<uint32_t> generations(kSlots, 0);
  for (int run = 0; run < 3; ++run) {
    step::StepPlan plan;
    trials.add_next(plan, generations);
    const Trials::Seen seen = trials.note(100);
    EXPECT_EQ(seen.us, run == 0 ? 0 : 100);
    EXPECT_EQ(seen.shape.decode_tokens, 1);
    EXPECT_EQ(seen.shape.decode_keys, 2);
  }
  EXPECT_EQ(generations[0], 3u);
}

// Without a bound nobody asks what steps take.
TEST(TrialsTest, AreForWhoLearnsCosts) {
  SchedSettings settings;
  settings.model_identity = "model";
  EXPECT_EQ(Scheduler(capacity(100), settings).plan_trial(), nullptr);
  settings.max_itl_us = kAutoItlBound;
  EXPECT_NE(Scheduler(capacity(100), settings).plan_trial(), nullptr);
  settings.num_cohorts = 2;
  EXPECT_EQ(Scheduler(capacity(100), settings).plan_trial(), nullptr);
}

TEST(TrialsTest, SlotsAndStepsGoOnBehindThem) {
  SchedSettings settings;
  settings.model_identity = "model";
  settings.max_itl_us = kAutoItlBound;
  Scheduler scheduler(capacity(1000), settings);
  step::StepId last = 0;
  uint32_t generation = 0;
  while (const auto plan = scheduler.plan_trial()) {
    EXPECT_EQ(plan->id, ++last);
    generation = plan->slots[0].generation;
    step::StepResult result;
    result.id = plan->id;
    result.device_us = 10;
    scheduler.commit_trial(result);
  }
  EXPECT_TRUE(scheduler.idle());
  EXPECT_TRUE(scheduler.check_integrity());
  NewSequence sequence;
  sequence.id = SequenceId(1);
  sequence.prompt = {1, 2, 3};
  sequence.max_len = 4;
  ASSERT_TRUE(scheduler.add(std::move(sequence)));
  const auto plan = scheduler.plan();
  ASSERT_NE(plan, nullptr);
  EXPECT_EQ(plan->id, last + 1);
  EXPECT_EQ(plan->slots.at(0).generation, generation + 1);
}

}  // namespace
}  // namespace rudder::sched
