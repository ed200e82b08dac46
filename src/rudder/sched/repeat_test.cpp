// Steps of several iterations: the tokens of single ones, when a step is repeated and how far, and
// that nothing waits longer than is promised (step.I8, step.I9).
#include <gtest/gtest.h>

#include <algorithm>

#include "rudder/testing/sched_loop.h"

namespace rudder::sched {
namespace {

using testing::SchedLoop;
using testing::test_prompt;
using testing::test_sequence;

testing::FakeOptions repeating_fake(int32_t depth = 2) {
  testing::FakeOptions options;
  options.capacity.max_in_flight = depth;
  options.capacity.max_repeat = 64;
  return options;
}

SchedSettings repeating_settings(int32_t multi_step, int32_t depth = 2) {
  SchedSettings settings;
  settings.multi_step = multi_step;
  settings.max_in_flight = depth;
  settings.model_identity = "model";
  return settings;
}

std::vector<int32_t> repeats(const SchedLoop& loop) {
  std::vector<int32_t> all;
  for (const auto& plan : loop.plans()) all.push_back(plan->repeat);
  return all;
}

TEST(RepeatTest, ALoneSequenceIsDecodedInFewSteps) {
  SchedLoop loop(repeating_fake(), repeating_settings(8));
  loop.add(test_sequence(1, test_prompt(20, 1), 30));
  ASSERT_EQ(loop.run(), "");
  // The prompt and its first token, then the other 29; never past the last.
  EXPECT_EQ(repeats(loop), (std::vector<int32_t>{1, 8, 8, 8, 5}));
  EXPECT_EQ(loop.record(1).num_outputs, 30);  // each token by itself
  EXPECT_EQ(loop.scheduler().stats().steps, 5u);
  EXPECT_EQ(loop.scheduler().stats().iterations, 30u);
  EXPECT_EQ(loop.scheduler().stats().late_results, 0u);
}

TEST(RepeatTest, EveryRepeatAndDepthGivesTheSameTokens) {
  for (const int32_t multi_step : {1, 2, 3, 8, 64}) {
    for (const int32_t depth : {1, 2, 3}) {
      SchedLoop loop(repeating_fake(depth), repeating_settings(multi_step, depth));
      for (uint64_t id = 1; id <= 20; ++id) {
        NewSequence sequence = test_sequence(id, test_prompt(static_cast<int32_t>(id), 3),
                                             3 * static_cast<int32_t>(id));
        sequence.sampling.stop_ids = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 100, 200, 300, 400};
        sequence.sampling.min_tokens = static_cast<int32_t>(id) / 2;
        if (id % 3 == 0) sequence.sampling.presence_penalty = 0.5f;
        loop.add(std::move(sequence));
      }
      EXPECT_EQ(loop.run(), "") << multi_step << " " << depth;
      const SchedStats stats = loop.scheduler().stats();
      EXPECT_EQ(stats.iterations > stats.steps, multi_step > 1);
    }
  }
}

// step.I8: a sequence that ends early is masked to the end of the step, and keeps its blocks so
// long.
TEST(RepeatTest, ASequenceThatEndsEarlyIsMaskedAndReleasedAfterItsStep) {
  NewSequence first = test_sequence(1, test_prompt(5, 1), 50);
  const auto expected = testing::expected_run(first.prompt, first.sampling, 55, 1000);
  first.sampling.stop_ids = {expected.tokens[3]};  // the third iteration of the second step
  const auto stopped = testing::expected_run(first.prompt, first.sampling, 55, 1000);
  ASSERT_EQ(stopped.tokens.size(), 4u);
  SchedLoop loop(repeating_fake(1), repeating_settings(8, 1));
  loop.add(std::move(first));
  loop.turn();
  ASSERT_TRUE(loop.launch());
  for (int i = 0; i < 3; ++i) loop.collect();
  EXPECT_EQ(loop.record(1).end, step::SeqEnd::kStopId);
  EXPECT_FALSE(loop.launch());
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(loop.scheduler().stats().num_retiring, 1) << i;
    EXPECT_EQ(loop.scheduler().stats().blocks_in_use, 1) << i;
    loop.collect();
  }
  EXPECT_EQ(loop.scheduler().stats().blocks_in_use, 0);
  EXPECT_EQ(loop.scheduler().stats().late_results, 5u);
  EXPECT_EQ(loop.executor().masked_results(), 5u);
  EXPECT_EQ(loop.run(), "");
}

// step.I9: an arrival is in the next step planned, and that is after at most `multi_step`
// iterations, however long the others go on.
TEST(RepeatTest, AnArrivalIsPlannedWithinTheIterationsOfOneStep) {
  for (const int32_t multi_step : {1, 2, 5, 16}) {
    for (const int32_t depth : {1, 2, 3}) {
      int64_t longest = 0;
      for (int32_t collected = 0; collected < 40; ++collected) {
        SchedLoop loop(repeating_fake(depth), repeating_settings(multi_step, depth));
        loop.add(test_sequence(1, test_prompt(20, 1), 200));
        for (int32_t i = 0; i < collected; ++i) loop.turn();
        while (loop.launch()) {
        }
        loop.add(test_sequence(2, test_prompt(20, 2), 200));
        const int64_t before = loop.num_collected();
        while (loop.record(2).first_step == 0) loop.turn();
        // turn() launches, then collects: the collect behind the launch is not waited for.
        longest = std::max(longest, loop.num_collected() - before - 1);
        for (int32_t i = 0; i < 100; ++i) loop.turn();
        loop.finish(1);
        loop.finish(2);
        ASSERT_EQ(loop.run(), "");
      }
      EXPECT_LE(longest, multi_step) << "depth " << depth;
      EXPECT_GE(longest, 1) << "depth " << depth;
    }
  }
}

TEST(RepeatTest, NothingIsRepeatedWhileSomethingWaits) {
  SchedSettings two = repeating_settings(8);
  two.max_num_seqs = 2;
  two.max_num_batched_tokens = 16;
  SchedLoop loop(repeating_fake(), two);
  for (uint64_t id = 1; id <= 6; ++id) loop.add(test_sequence(id, test_prompt(40, 1), 25));
  bool was_repeated = false;
  for (size_t seen = 0; loop.error().empty();) {
    const bool waits = loop.scheduler().stats().num_waiting > 0;
    const bool more = loop.turn();
    for (; seen < loop.plans().size(); ++seen) {
      const step::StepPlan& plan = *loop.plans()[seen];
      EXPECT_TRUE(plan.repeat == 1 || !waits) << "step " << plan.id;
      EXPECT_TRUE(plan.repeat == 1 || plan.num_tokens() == std::ssize(plan.seqs));
      was_repeated = was_repeated || plan.repeat > 1;
    }
    if (!more) break;
  }
  EXPECT_TRUE(was_repeated);
  EXPECT_EQ(loop.run(), "");
}

// Blocks for all iterations are there before the launch, or the step is shorter: it preempts no
// one.
// The host writes the next mask when it knows the token.
TEST(RepeatTest, NothingIsRepeatedBesideAConstrainedSequence) {
  Scheduler scheduler(repeating_fake().capacity, repeating_settings(8));
  NewSequence constrained = test_sequence(1, test_prompt(20, 1), 30);
  constrained.constrained = true;
  ASSERT_TRUE(scheduler.add(std::move(constrained)));
  ASSERT_TRUE(scheduler.add(test_sequence(2, test_prompt(20, 2), 30)));
  for (int i = 0; i < 2; ++i) {  // the prompts, then decodes
    const auto plan = scheduler.plan();
    ASSERT_NE(plan, nullptr);
    EXPECT_EQ(plan->repeat, 1);
    ASSERT_EQ(plan->seqs.size(), 2u);
    EXPECT_TRUE(plan->seqs[0].constrained);
    EXPECT_FALSE(plan->seqs[1].constrained);
    ASSERT_EQ(scheduler.constrained().size(), 1u);
    EXPECT_EQ(scheduler.constrained()[0].id, SequenceId(1));
  }
  scheduler.drop_all();
}

// A chunk that is not the last samples nothing, so nothing constrains it.
TEST(RepeatTest, OnlySequencesThatAreSampledAreConstrained) {
  SchedSettings chunked = repeating_settings(1);
  chunked.max_num_batched_tokens = 16;
  Scheduler scheduler(repeating_fake().capacity, chunked);
  NewSequence constrained = test_sequence(1, test_prompt(20, 1), 30);
  constrained.constrained = true;
  ASSERT_TRUE(scheduler.add(std::move(constrained)));
  EXPECT_EQ(scheduler.plan()->num_masks(), 0);
  EXPECT_TRUE(scheduler.constrained().empty());
  EXPECT_EQ(scheduler.plan()->num_masks(), 1);
  EXPECT_EQ(scheduler.constrained().size(), 1u);
  scheduler.drop_all();
}

TEST(RepeatTest, ARepeatTakesNoMoreBlocksThanThereAre) {
  testing::FakeOptions tight = repeating_fake();
  tight.capacity.block_size = 4;
  tight.capacity.num_blocks = 12;
  tight.capacity.max_seq_len = 48;
  SchedLoop loop(tight, repeating_settings(16));
  loop.add(test_sequence(1, test_prompt(3, 1), 20));
  loop.add(test_sequence(2, test_prompt(3, 2), 20));
  ASSERT_EQ(loop.run(), "");
  EXPECT_EQ(loop.scheduler().stats().preemptions, 0u);  // 6 blocks each: all fit
  EXPECT_EQ(repeats(loop)[1], 16);

  tight.capacity.num_blocks = 8;
  SchedLoop tighter(tight, repeating_settings(16));
  tighter.add(test_sequence(1, test_prompt(3, 1), 20));
  tighter.add(test_sequence(2, test_prompt(3, 2), 20));
  ASSERT_EQ(tighter.run(), "");
  EXPECT_GT(tighter.scheduler().stats().preemptions, 0u);
}

TEST(RepeatTest, ACancelWithinARepeatedStepDropsTheRest) {
  SchedLoop loop(repeating_fake(1), repeating_settings(8, 1));
  loop.add(test_sequence(1, test_prompt(20, 1), 50));
  loop.add(test_sequence(2, test_prompt(20, 2), 50));
  loop.turn();
  ASSERT_TRUE(loop.launch());
  loop.collect();
  loop.collect();
  loop.finish(1);
  EXPECT_EQ(loop.record(1).tokens.size(), 3u);
  EXPECT_EQ(loop.run(), "");
  EXPECT_EQ(loop.record(1).tokens.size(), 3u);
  EXPECT_EQ(loop.record(2).tokens.size(), 50u);
}

}  // namespace
}  // namespace rudder::sched
