#include "rudder/sched/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "rudder/testing/sched_loop.h"

namespace rudder::sched {
namespace {

using testing::SchedLoop;
using testing::test_prompt;
using testing::test_sequence;

using step::LogitsWanted;
using step::TokenSource;

testing::FakeOptions fake(int32_t depth = 2) {
  testing::FakeOptions options;
  options.capacity.max_in_flight = depth;
  return options;
}

SchedSettings settings(int32_t depth = 2) {
  SchedSettings settings;
  settings.max_in_flight = depth;
  settings.model_identity = "model";
  return settings;
}

TEST(SchedulerTest, GivesALoneSequenceItsTokens) {
  SchedLoop loop(fake(), settings());
  loop.add(test_sequence(1, test_prompt(20, 1), 30));
  EXPECT_EQ(loop.run(), "");
  EXPECT_EQ(loop.record(1).tokens.size(), 30u);
  EXPECT_EQ(loop.record(1).end, step::SeqEnd::kLength);
  EXPECT_EQ(loop.record(1).num_outputs, 30);  // each token at its own step
}

TEST(SchedulerTest, PromptsAroundABlockEdge) {
  for (const int32_t len : {1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49}) {
    for (const int32_t num_output : {1, 2, 15, 16, 17, 33}) {
      SchedLoop loop(fake(), settings());
      loop.add(test_sequence(1, test_prompt(len, len), num_output));
      EXPECT_EQ(loop.run(), "") << len << " " << num_output;
    }
  }
}

TEST(SchedulerTest, EveryChunkSizeGivesTheSameTokens) {
  for (const int32_t budget : {1, 2, 15, 16, 17, 31, 32, 33, 64, 100, 512}) {
    for (const bool caching : {false, true}) {
      SchedSettings small = settings();
      small.max_num_batched_tokens = budget;
      small.enable_prefix_caching = caching;
      SchedLoop loop(fake(), small);
      for (uint64_t id = 1; id <= 5; ++id) {
        const auto n = static_cast<int32_t>(id);
        loop.add(test_sequence(id, test_prompt(23 * n, n), 9));
      }
      EXPECT_EQ(loop.run(), "") << budget;
    }
  }
}

TEST(SchedulerTest, EveryDepthGivesTheSameTokens) {
  for (const int32_t depth : {1, 2, 3, 5}) {
    SchedLoop loop(fake(depth), settings(depth));
    for (uint64_t id = 1; id <= 20; ++id) {
      NewSequence sequence =
          test_sequence(id, test_prompt(static_cast<int32_t>(id), 3), static_cast<int32_t>(id));
      sequence.sampling.stop_ids = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 100, 200, 300, 400};
      loop.add(std::move(sequence));
    }
    EXPECT_EQ(loop.run(), "") << depth;
  }
}

TEST(SchedulerTest, DecodesCarryAndChunksAskForNoLogits) {
  SchedSettings small = settings();
  small.max_num_batched_tokens = 16;
  SchedLoop loop(fake(), small);
  loop.add(test_sequence(1, test_prompt(40, 1), 3));
  ASSERT_EQ(loop.run(), "");
  ASSERT_EQ(loop.plans().size(), 5u);  // 16 + 16 + 8 tokens of prompt, then two decodes
  const int32_t q_lens[] = {16, 16, 8, 1, 1};
  int32_t kv_len = 0;
  for (size_t i = 0; i < 5; ++i) {
    ASSERT_EQ(loop.plans()[i]->seqs.size(), 1u);
    const step::SeqWork& work = loop.plans()[i]->seqs[0];
    EXPECT_EQ(work.q_len, q_lens[i]);
    EXPECT_EQ(work.kv_len, kv_len);
    EXPECT_EQ(work.logits, i < 2 ? LogitsWanted::kNone : LogitsWanted::kLast);
    EXPECT_EQ(work.tokens, i < 3 ? TokenSource::kHost : TokenSource::kCarry);
    kv_len += work.q_len;
  }
  EXPECT_EQ(loop.plans()[0]->slots.size(), 1u);
  EXPECT_TRUE(loop.plans()[1]->slots.empty());
}

// Where a prompt goes on in a later step, the step has a multiple of what the executor likes.
TEST(SchedulerTest, APromptIsCutWhereTheStepHasAWholeMultiple) {
  testing::FakeOptions options = fake();
  options.capacity.prompt_step_multiple = 16;
  SchedSettings small = settings();
  small.max_num_batched_tokens = 45;
  SchedLoop loop(options, small);
  for (uint64_t id = 1; id <= 5; ++id) {
    loop.add(test_sequence(id, test_prompt(37 * static_cast<int32_t>(id), static_cast<int32_t>(id)),
                           12));
  }
  ASSERT_EQ(loop.run(), "");
  int32_t num_cut = 0;
  int32_t num_longer = 0;
  for (const auto& plan : loop.plans()) {
    const bool is_cut = std::ranges::any_of(
        plan->seqs, [](const step::SeqWork& work) { return work.logits == LogitsWanted::kNone; });
    if (!is_cut) continue;
    ++num_cut;
    EXPECT_EQ(plan->num_tokens() % 16, 0) << plan->num_tokens();
    num_longer += plan->num_tokens() > 16 ? 1 : 0;
  }
  EXPECT_GT(num_cut, 8);
  EXPECT_EQ(num_longer, num_cut);
}

// A step that has room for less than the multiple takes what it can.
TEST(SchedulerTest, APromptAdvancesWhereAStepHasNoWholeMultiple) {
  testing::FakeOptions options = fake();
  options.capacity.prompt_step_multiple = 64;
  SchedSettings small = settings();
  small.max_num_batched_tokens = 20;
  SchedLoop loop(options, small);
  for (uint64_t id = 1; id <= 3; ++id) loop.add(test_sequence(id, test_prompt(100, 9), 5));
  ASSERT_EQ(loop.run(), "");
  EXPECT_EQ(loop.plans().front()->num_tokens(), 20);
}

TEST(SchedulerTest, DecodesRideWithChunks) {
  SchedSettings small = settings();
  small.max_num_batched_tokens = 32;
  SchedLoop loop(fake(), small);
  loop.add(test_sequence(1, test_prompt(8, 1), 20));
  loop.turn();
  loop.add(test_sequence(2, test_prompt(100, 2), 5));
  ASSERT_EQ(loop.run(), "");
  const bool mixed = std::ranges::any_of(loop.plans(), [](const auto& plan) {
    return plan->seqs.size() == 2 && plan->seqs[0].q_len == 1 && plan->seqs[1].q_len == 31;
  });
  EXPECT_TRUE(mixed);
  for (const auto& plan : loop.plans()) EXPECT_LE(plan->num_tokens(), 32);
}

TEST(SchedulerTest, NothingIsPlannedPastMaxLen) {
  SchedLoop loop(fake(3), settings(3));
  loop.add(test_sequence(1, test_prompt(5, 1), 4));
  ASSERT_EQ(loop.run(), "");
  EXPECT_EQ(loop.plans().size(), 4u);
  EXPECT_EQ(loop.scheduler().stats().late_results, 0u);
}

TEST(SchedulerTest, ALateResultIsMaskedAndCounted) {
  NewSequence sequence = test_sequence(1, test_prompt(5, 1), 50);
  const auto expected = testing::expected_run(sequence.prompt, sequence.sampling, 55, 1000);
  sequence.sampling.stop_ids = {expected.tokens[3]};
  SchedLoop loop(fake(3), settings(3));
  loop.add(std::move(sequence));
  ASSERT_EQ(loop.run(), "");
  EXPECT_EQ(loop.record(1).end, step::SeqEnd::kStopId);
  EXPECT_LE(loop.record(1).tokens.size(), 4u);
  EXPECT_EQ(loop.scheduler().stats().late_results, 2u);
  EXPECT_EQ(loop.executor().masked_results(), 2u);
}

TEST(SchedulerTest, PlanIsNullAtTheDepthAndWhenIdle) {
  SchedLoop loop(fake(2), settings(2));
  EXPECT_EQ(loop.scheduler().plan(), nullptr);
  loop.add(test_sequence(1, test_prompt(5, 1), 10));
  EXPECT_TRUE(loop.launch());
  EXPECT_TRUE(loop.launch());
  EXPECT_FALSE(loop.launch());
  loop.collect();
  EXPECT_TRUE(loop.launch());
  EXPECT_EQ(loop.run(), "");
}

TEST(SchedulerTest, RefusesWhatCanNeverRun) {
  testing::FakeOptions options = fake();
  options.capacity.num_blocks = 4;
  options.capacity.max_seq_len = 1000;
  Scheduler scheduler(options.capacity, settings());
  EXPECT_EQ(scheduler.max_len_limit(), 64);
  const auto empty = scheduler.add(test_sequence(1, {}, 5));
  ASSERT_FALSE(empty);
  EXPECT_EQ(empty.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(empty.error().where, "prompt");
  const auto large = scheduler.add(test_sequence(1, test_prompt(60, 1), 5));
  ASSERT_FALSE(large);
  EXPECT_EQ(large.error().where, "max_tokens");
  EXPECT_FALSE(scheduler.add(test_sequence(1, test_prompt(10, 1), 0)));
  EXPECT_TRUE(scheduler.add(test_sequence(1, test_prompt(60, 1), 4)));
}

TEST(SchedulerTest, TheLargestSequenceFillsThePool) {
  testing::FakeOptions options = fake();
  options.capacity.num_blocks = 4;
  SchedLoop loop(options, settings());
  loop.add(test_sequence(1, test_prompt(1, 1), 63));
  loop.add(test_sequence(2, test_prompt(63, 2), 1));
  EXPECT_EQ(loop.run(), "");
}

TEST(SchedulerTest, FinishInFlightKeepsBlocksUntilTheStepsAreIn) {
  SchedLoop loop(fake(2), settings(2));
  loop.add(test_sequence(1, test_prompt(40, 1), 50));
  loop.launch();
  loop.launch();
  EXPECT_EQ(loop.scheduler().stats().blocks_in_use, 3);
  loop.finish(1);
  EXPECT_FALSE(loop.scheduler().has_work());
  EXPECT_EQ(loop.scheduler().stats().blocks_in_use, 3);
  EXPECT_EQ(loop.scheduler().stats().num_retiring, 1);
  EXPECT_FALSE(loop.launch());
  loop.collect();
  EXPECT_EQ(loop.scheduler().stats().blocks_in_use, 3);
  loop.collect();
  EXPECT_EQ(loop.scheduler().stats().blocks_in_use, 0);
  EXPECT_EQ(loop.scheduler().stats().blocks_cached, 2);  // its two full blocks were computed
  EXPECT_EQ(loop.scheduler().stats().late_results, 2u);
  EXPECT_EQ(loop.run(), "");
  EXPECT_TRUE(loop.record(1).tokens.empty());
}

TEST(SchedulerTest, FinishWhileWaitingAndTwiceAndUnknown) {
  SchedSettings one = settings();
  one.max_num_seqs = 1;
  SchedLoop loop(fake(), one);
  loop.add(test_sequence(1, test_prompt(4, 1), 5));
  loop.add(test_sequence(2, test_prompt(6, 2), 5));
  loop.turn();
  EXPECT_EQ(loop.scheduler().stats().num_waiting, 1);
  EXPECT_EQ(loop.scheduler().stats().waiting_tokens, 6);
  loop.finish(2);
  EXPECT_EQ(loop.scheduler().stats().waiting_tokens, 0);
  loop.finish(2);
  loop.scheduler().finish(SequenceId(77));
  loop.finish(1);
  loop.finish(1);
  EXPECT_EQ(loop.run(), "");
}

TEST(SchedulerTest, DropAllGivesEverythingBack) {
  SchedLoop loop(fake(), settings());
  for (uint64_t id = 1; id <= 5; ++id) loop.add(test_sequence(id, test_prompt(30, 1), 5));
  loop.launch();
  loop.launch();
  loop.scheduler().drop_all();
  EXPECT_TRUE(loop.scheduler().idle());
  EXPECT_TRUE(loop.scheduler().check_integrity());
  EXPECT_EQ(loop.scheduler().stats().blocks_free, loop.scheduler().stats().num_blocks);
}

TEST(SchedulerTest, RunsWithinItsLimits) {
  SchedSettings few = settings();
  few.max_num_seqs = 3;
  SchedLoop loop(fake(), few);
  for (uint64_t id = 1; id <= 12; ++id) loop.add(test_sequence(id, test_prompt(9, 1), 7));
  while (loop.turn()) EXPECT_LE(loop.scheduler().stats().num_running, 3);
  EXPECT_EQ(loop.run(), "");
  for (const auto& plan : loop.plans()) EXPECT_LE(plan->seqs.size(), 3u);
}

TEST(SchedulerTest, LowerPriorityValuesGoFirstThenArrival) {
  SchedSettings one = settings();
  one.max_num_seqs = 1;
  SchedLoop loop(fake(), one);
  const int32_t priorities[] = {1, 0, 1, -1, 0};
  for (uint64_t id = 1; id <= 5; ++id) {
    NewSequence sequence = test_sequence(id, test_prompt(9, 1), 3);
    sequence.priority = priorities[id - 1];
    loop.add(std::move(sequence));
  }
  ASSERT_EQ(loop.run(), "");
  const std::vector<SequenceId> order = {SequenceId(4), SequenceId(2), SequenceId(5), SequenceId(1),
                                         SequenceId(3)};
  EXPECT_EQ(loop.first_planned(), order);
}

// A stream of urgent sequences that always fills the one place cannot keep a late one out for ever.
TEST(SchedulerTest, WaitIsBounded) {
  SchedSettings one = settings();
  one.max_num_seqs = 1;
  one.max_wait_steps = 200;
  SchedLoop loop(fake(), one);
  NewSequence last = test_sequence(1, test_prompt(9, 1), 3);
  last.priority = 5;
  loop.add(std::move(last));
  for (uint64_t id = 2; id < 400 && loop.record(1).first_step == 0; ++id) {
    loop.add(test_sequence(id, test_prompt(9, 2), 3));
    loop.turn();
    loop.turn();
  }
  EXPECT_GE(loop.record(1).first_step, 200u);
  EXPECT_LE(loop.record(1).first_step, 280u);
  EXPECT_EQ(loop.run(), "");
}

TEST(SchedulerTest, HistoryComesWithTheSlot) {
  SchedLoop loop(fake(), settings());
  for (uint64_t id = 1; id <= 4; ++id) {
    NewSequence sequence = test_sequence(id, test_prompt(20, 1), 10);
    sequence.sampling.presence_penalty = 0.5f;
    loop.add(std::move(sequence));
  }
  ASSERT_EQ(loop.run(), "");
  EXPECT_EQ(loop.plans()[0]->slots[0].history, test_prompt(20, 1));
  EXPECT_EQ(loop.plans()[0]->slots[0].history_prompt_len, 20);
}

}  // namespace
}  // namespace rudder::sched
