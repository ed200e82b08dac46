// Preemption by recompute: who is chosen, and that it changes no token.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "rudder/testing/sched_loop.h"

namespace rudder::sched {
namespace {

using testing::SchedLoop;
using testing::test_prompt;
using testing::test_sequence;

testing::FakeOptions preempting_fake(int32_t num_blocks, int32_t depth = 2) {
  testing::FakeOptions options;
  options.capacity.num_blocks = num_blocks;
  options.capacity.max_in_flight = depth;
  return options;
}

SchedSettings preempting_settings(bool caching, int32_t depth = 2) {
  SchedSettings settings;
  settings.model_identity = "model";
  settings.enable_prefix_caching = caching;
  settings.max_in_flight = depth;
  return settings;
}

TEST(PreemptionTest, GivesTheSameTokens) {
  for (const int32_t depth : {1, 2, 3}) {
    for (const bool caching : {false, true}) {
      SchedLoop loop(preempting_fake(12, depth), preempting_settings(caching, depth));
      for (uint64_t id = 1; id <= 6; ++id) {
        NewSequence sequence = test_sequence(id, test_prompt(20, static_cast<int32_t>(id)), 100);
        sequence.sampling.repetition_penalty = id % 2 == 0 ? 1.1f : 1.0f;
        loop.add(std::move(sequence));
      }
      ASSERT_EQ(loop.run(), "");
      EXPECT_GT(loop.scheduler().stats().preemptions, 0u);
    }
  }
}

// Four sequences that outgrow the pool together: the last to arrive gives way, the first never.
TEST(PreemptionTest, TheLatestGivesWay) {
  SchedLoop loop(preempting_fake(12), preempting_settings(false));
  for (uint64_t id = 1; id <= 4; ++id) {
    loop.add(test_sequence(id, test_prompt(30, static_cast<int32_t>(id)), 60));
  }
  ASSERT_EQ(loop.run(), "");
  const auto& plans = loop.plans();
  std::vector<size_t> opens;  // how many sequences had output when a slot was reopened
  for (const auto& plan : plans) {
    for (const step::SlotEdit& edit : plan->slots) {
      if (edit.num_output > 0) opens.push_back(static_cast<size_t>(edit.num_output));
    }
  }
  EXPECT_EQ(opens.size(), loop.scheduler().stats().preemptions);
  EXPECT_GE(opens.size(), 1u);
  // The first is never reopened: its 60 tokens come in the first 60 steps.
  EXPECT_EQ(loop.record(1).num_outputs, 60);
  int64_t runs_of_first = 0;
  for (size_t i = 0; i < 60; ++i) runs_of_first += plans[i]->seqs[0].slot == plans[0]->seqs[0].slot;
  EXPECT_EQ(runs_of_first, 60);
}

TEST(PreemptionTest, LowerPriorityGivesWayFirst) {
  SchedLoop loop(preempting_fake(8), preempting_settings(false));
  NewSequence low = test_sequence(1, test_prompt(30, 1), 60);
  low.priority = 1;
  loop.add(std::move(low));
  loop.turn();
  loop.add(test_sequence(2, test_prompt(30, 2), 59));
  ASSERT_EQ(loop.run(), "");
  EXPECT_GE(loop.scheduler().stats().preemptions, 1u);
  std::set<int32_t> reopened;  // by max_len
  for (const auto& plan : loop.plans()) {
    for (const step::SlotEdit& edit : plan->slots) {
      if (edit.num_output > 0) reopened.insert(edit.max_len);
    }
  }
  EXPECT_EQ(reopened, std::set<int32_t>{90});
  // The urgent one is done first although it came later.
  EXPECT_LT(loop.record(2).last_step, loop.record(1).last_step);
}

TEST(PreemptionTest, ResumesFromThePrefixCache) {
  uint64_t computed[2] = {};
  for (const bool caching : {false, true}) {
    SchedLoop loop(preempting_fake(12), preempting_settings(caching));
    for (uint64_t id = 1; id <= 3; ++id) {
      loop.add(test_sequence(id, test_prompt(40, static_cast<int32_t>(id)), 60));
    }
    ASSERT_EQ(loop.run(), "");
    ASSERT_GT(loop.scheduler().stats().preemptions, 0u);
    computed[caching] = loop.executor().computed_tokens();
  }
  EXPECT_LT(computed[1], computed[0]);
}

// Sequences of one length cross block edges in one step: as many give way as blocks are missing,
// not one for each.
TEST(PreemptionTest, DoesNotThrash) {
  testing::FakeOptions options = preempting_fake(100);
  SchedLoop loop(options, preempting_settings(false));
  for (uint64_t id = 1; id <= 32; ++id) {
    loop.add(test_sequence(id, test_prompt(16, static_cast<int32_t>(id)), 112));
  }
  ASSERT_EQ(loop.run(), "");
  const uint64_t useful = 32 * 127;
  EXPECT_LT(loop.executor().computed_tokens(), useful * 3 / 2);
  EXPECT_LT(loop.scheduler().stats().preemptions, 64u);
}

TEST(PreemptionTest, AFinishWhilePreemptedEndsIt) {
  SchedLoop loop(preempting_fake(6), preempting_settings(true));
  loop.add(test_sequence(1, test_prompt(30, 1), 60));
  loop.add(test_sequence(2, test_prompt(30, 2), 60));
  while (loop.scheduler().stats().preemptions == 0) ASSERT_TRUE(loop.turn());
  loop.finish(2);
  EXPECT_EQ(loop.run(), "");
}

}  // namespace
}  // namespace rudder::sched
