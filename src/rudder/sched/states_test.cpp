// States of sequences and their checkpoints, as the scheduler plans them (docs/contracts/cache.md).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "rudder/testing/sched_loop.h"

namespace rudder::sched {
namespace {

using testing::SchedLoop;
using testing::test_prompt;
using testing::test_sequence;

testing::FakeOptions states_fake(int32_t num_states, int32_t checkpoint_blocks = 0) {
  testing::FakeOptions options;
  options.capacity.states = {
      .count = num_states, .bytes = 1, .checkpoint_blocks = checkpoint_blocks};
  return options;
}

SchedSettings states_settings() {
  SchedSettings settings;
  settings.model_identity = "model";
  return settings;
}

// One is behind the last block of a prompt that leaves a token to compute: the chunk ends there.
TEST(StatesTest, APromptIsGoneOnFromItsCheckpoint) {
  SchedLoop loop(states_fake(8), states_settings());
  loop.add(test_sequence(1, test_prompt(70, 1), 3));
  ASSERT_TRUE(loop.launch());
  EXPECT_EQ(loop.plans()[0]->num_tokens(), 64);
  ASSERT_EQ(loop.plans()[0]->copies_after.size(), 1u);
  ASSERT_EQ(loop.run(), "");
  for (uint64_t id = 2; id <= 3; ++id) {
    loop.add(test_sequence(id, test_prompt(id == 2 ? 70 : 65, 1), 3));
    ASSERT_TRUE(loop.launch());
    const step::StepPlan& plan = *loop.plans().back();
    ASSERT_EQ(plan.copies_before.size(), 1u);
    EXPECT_EQ(plan.copies_before[0].to, step::state_ref(plan.slots[0].state));
    EXPECT_EQ(plan.copies_before[0].from, loop.plans()[0]->copies_after[0].to);
    ASSERT_EQ(loop.run(), "");
    EXPECT_EQ(loop.record(id).cached_tokens, 64);
  }
}

// Its blocks are cached up to there, but nobody kept a state between.
TEST(StatesTest, APrefixWithoutACheckpointIsNoHit) {
  SchedLoop loop(states_fake(8), states_settings());
  loop.add(test_sequence(1, test_prompt(70, 1), 3));
  ASSERT_EQ(loop.run(), "");
  loop.add(test_sequence(2, test_prompt(40, 1), 3));
  ASSERT_EQ(loop.run(), "");
  EXPECT_EQ(loop.record(2).cached_tokens, 0);
  EXPECT_EQ(loop.scheduler().stats().prefix_hits, 0u);
  EXPECT_EQ(loop.scheduler().stats().states.hits_without, 32u);
}

TEST(StatesTest, CheckpointsComeEverySoManyBlocks) {
  SchedLoop loop(states_fake(8, 2), states_settings());
  loop.add(test_sequence(1, test_prompt(40, 1), 60));  // at 32, 64 and 96
  ASSERT_EQ(loop.run(), "");
  EXPECT_EQ(loop.scheduler().stats().states.checkpoints, 3u);
  std::vector<int32_t> prompt = test_prompt(40, 1);
  const std::vector<int32_t>& output = loop.record(1).tokens;
  prompt.insert(prompt.end(), output.begin(), output.begin() + 30);
  loop.add(test_sequence(2, prompt, 3));
  ASSERT_EQ(loop.run(), "");
  EXPECT_EQ(loop.record(2).cached_tokens, 64);
}

// What a chat's messages end with ends its answers too. Conversations share the first message, one
// that is asked again in another way all but its last.
TEST(StatesTest, TurnsAreGoneOnFromTheirEnds) {
  SchedLoop loop(states_fake(16), states_settings());
  constexpr int32_t kEnd = 7;
  const auto chat = [&](std::initializer_list<int32_t> lengths, int32_t seed) {
    std::vector<int32_t> prompt;
    for (const int32_t length : lengths) {
      for (int32_t i = 0; i < length - 1; ++i) prompt.push_back(8 + (i * 3 + seed) % 5);
      prompt.push_back(kEnd);
      seed = seed == 0 ? 1 : seed + 1;
    }
    return prompt;
  };
  const auto add = [&](uint64_t id, std::vector<int32_t> prompt) {
    NewSequence sequence = test_sequence(id, std::move(prompt), 3);
    sequence.sampling.stop_ids = {kEnd};
    loop.add(std::move(sequence));
    EXPECT_EQ(loop.run(), "");
  };
  std::vector<int32_t> first = chat({40, 50, 50, 50}, 0);
  std::vector<int32_t> again = first;
  again.resize(150);
  first.insert(first.end(), 40, 9);  // a message that is not whole
  again.insert(again.end(), 40, 10);
  std::vector<int32_t> other = first;
  other.resize(40);
  other.insert(other.end(), 40, 11);
  add(1, first);
  EXPECT_EQ(loop.scheduler().stats().states.checkpoints, 3u);  // at 32, 176 and 224
  add(2, other);
  EXPECT_EQ(loop.record(2).cached_tokens, 32);
  std::vector<int32_t> asked_again = first;
  asked_again.resize(190);
  asked_again.insert(asked_again.end(), 40, 10);
  add(3, asked_again);
  EXPECT_EQ(loop.record(3).cached_tokens, 176);
  add(4, again);  // its last turn was neither the first one's first nor its last
  EXPECT_EQ(loop.record(4).cached_tokens, 32);
}

// The tokens are the template's, whatever ends the answer.
TEST(StatesTest, TurnsEndWhereTheTemplateEndsThem) {
  SchedSettings settings = states_settings();
  settings.turn_ends = {5, 7};
  SchedLoop loop(states_fake(16), settings);
  std::vector<int32_t> prompt(100, 9);
  prompt[49] = 5;
  prompt[70] = 7;
  NewSequence sequence = test_sequence(1, prompt, 3);
  sequence.sampling.stop_ids = {9};
  loop.add(std::move(sequence));
  ASSERT_EQ(loop.run(), "");
  EXPECT_EQ(loop.scheduler().stats().states.checkpoints, 3u);  // at 48, 64 and 96
  std::vector<int32_t> again = prompt;
  std::fill(again.begin() + 71, again.end(), 10);
  loop.add(test_sequence(2, again, 3));
  ASSERT_EQ(loop.run(), "");
  EXPECT_EQ(loop.record(2).cached_tokens, 64);
}

// A second state is for what a sequence goes on from: two run one after the other with the two.
TEST(StatesTest, SequencesWaitForAState) {
  SchedLoop loop(states_fake(2), states_settings());
  for (uint64_t id = 1; id <= 4; ++id) {
    loop.add(test_sequence(id, test_prompt(20, static_cast<int32_t>(id)), 20));
  }
  int32_t most = 0;
  while (loop.turn()) most = std::max(most, loop.scheduler().stats().num_running);
  loop.check_end();
  EXPECT_EQ(loop.error(), "");
  EXPECT_EQ(most, 2);
}

// The one that was used longest ago.
TEST(StatesTest, RunningSequencesGoBeforeCheckpoints) {
  SchedLoop loop(states_fake(3), states_settings());
  for (uint64_t id = 1; id <= 3; ++id) {
    loop.add(test_sequence(id, test_prompt(33, static_cast<int32_t>(id)), 2));
    ASSERT_EQ(loop.run(), "");
  }
  loop.add(test_sequence(4, test_prompt(33, 3), 2));
  ASSERT_EQ(loop.run(), "");
  EXPECT_EQ(loop.record(4).cached_tokens, 32);
  loop.add(test_sequence(5, test_prompt(33, 1), 2));
  ASSERT_EQ(loop.run(), "");
  EXPECT_EQ(loop.record(5).cached_tokens, 0);
}

// Few blocks: sequences are preempted and come back from their longest node.
TEST(StatesTest, APreemptedSequenceGoesOnFromACheckpoint) {
  testing::FakeOptions fake = states_fake(16, 1);
  fake.capacity.num_blocks = 12;
  SchedLoop loop(fake, states_settings());
  for (uint64_t id = 1; id <= 4; ++id) {
    loop.add(test_sequence(id, test_prompt(30, static_cast<int32_t>(id)), 60));
  }
  ASSERT_EQ(loop.run(), "");
  EXPECT_GT(loop.scheduler().stats().preemptions, 0u);
}

// Tokens that are computed again for each preemption, on a machine with few blocks.
double recomputed_per_preemption(int32_t num_states, int32_t checkpoint_blocks) {
  testing::FakeOptions fake = states_fake(num_states, checkpoint_blocks);
  if (num_states == 0) fake.capacity.states = {};
  fake.capacity.num_blocks = 60;
  SchedLoop loop(fake, states_settings());
  int64_t once = 0;
  for (uint64_t id = 1; id <= 40; ++id) {
    const auto num = static_cast<int32_t>(id);
    NewSequence sequence = test_sequence(id, test_prompt(60 + 3 * num, num), 100 + 7 * (num % 13));
    once += sequence.max_len - 1;
    loop.add(std::move(sequence));
  }
  EXPECT_EQ(loop.run(), "");
  const auto preemptions = static_cast<double>(loop.scheduler().stats().preemptions);
  EXPECT_GT(preemptions, 10);
  return static_cast<double>(static_cast<int64_t>(loop.executor().computed_tokens()) - once) /
         preemptions;
}

// One every block is more than any that a preemption could make: it spares less than a state takes,
// which is the bytes of as many blocks as lie between two checkpoints by default.
TEST(StatesTest, ACheckpointAtAPreemptionSparesLessThanItTakes) {
  const double without = recomputed_per_preemption(0, 0);
  const double every_block = recomputed_per_preemption(400, 1);
  std::printf(
      "computed again for each preemption: %.1f tokens with blocks alone, %.1f with a "
      "checkpoint every block\n",
      without, every_block);
  for (const int32_t blocks : {2, 4, 8}) {
    const double every = recomputed_per_preemption(400, blocks);
    std::printf("one every %d blocks: %.1f tokens, %.1f more\n", blocks, every,
                every - every_block);
    EXPECT_LT(every - every_block, blocks * 16) << blocks;
  }
}

// A copy that takes three steps more: the sequence holds its blocks and state meanwhile, and is in
// no plan; others go on.
TEST(StatesTest, WhoseStateIsStillCopiedWaits) {
  testing::FakeOptions fake = states_fake(8);
  fake.capacity.states.slow_copies = true;
  fake.copy_steps = 3;
  SchedLoop loop(fake, states_settings());
  loop.add(test_sequence(1, test_prompt(70, 1), 3));
  ASSERT_EQ(loop.run(), "");
  loop.add(test_sequence(2, test_prompt(20, 2), 40));
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(loop.turn());
  int32_t most_steps = 0;
  for (uint64_t id = 3; id < 9; ++id) {
    loop.add(test_sequence(id, test_prompt(70, 1), 3));
    int32_t steps = 0;  // that went by while the copy was on its way
    while (loop.record(id).tokens.empty()) {
      ASSERT_TRUE(loop.turn());
      const SchedStats stats = loop.scheduler().stats();
      if (stats.states.copies_in_flight == 0) continue;
      ++steps;
      EXPECT_GE(stats.num_running, 2);
    }
    most_steps = std::max(most_steps, steps);
    EXPECT_EQ(loop.record(id).cached_tokens, 64);
  }
  EXPECT_GE(most_steps, 3);
  ASSERT_EQ(loop.run(), "");
}

// Nothing else runs: steps of nothing wait for the copy.
TEST(StatesTest, ACopyIsWaitedForAlone) {
  testing::FakeOptions fake = states_fake(4);
  fake.capacity.states.slow_copies = true;
  fake.copy_steps = 100;
  SchedLoop loop(fake, states_settings());
  for (uint64_t id = 1; id <= 5; ++id) {
    loop.add(test_sequence(id, test_prompt(70, 1), 3));
    ASSERT_EQ(loop.run(), "");
    EXPECT_EQ(loop.record(id).cached_tokens, id == 1 ? 0 : 64);
  }
}

// It keeps all that it holds until the copy has come.
TEST(StatesTest, WhoEndsWhileItsStateIsCopiedHoldsItToTheEnd) {
  testing::FakeOptions fake = states_fake(3);
  fake.capacity.states.slow_copies = true;
  fake.copy_steps = 100;
  SchedLoop loop(fake, states_settings());
  loop.add(test_sequence(1, test_prompt(70, 1), 3));
  ASSERT_EQ(loop.run(), "");
  loop.add(test_sequence(2, test_prompt(70, 1), 3));
  ASSERT_TRUE(loop.launch());
  loop.finish(2);
  EXPECT_EQ(loop.scheduler().stats().num_retiring, 1);
  EXPECT_TRUE(loop.scheduler().has_work());
  loop.add(test_sequence(3, test_prompt(90, 3), 30));
  ASSERT_EQ(loop.run(), "");
}

TEST(StatesTest, NothingOfBeforeAResetIsGoneOnFrom) {
  SchedLoop loop(states_fake(8, 1), states_settings());
  loop.add(test_sequence(1, test_prompt(40, 1), 30));
  ASSERT_TRUE(loop.launch());
  loop.scheduler().reset_prefix_cache();
  ASSERT_EQ(loop.run(), "");
  loop.add(test_sequence(2, test_prompt(40, 1), 3));
  ASSERT_EQ(loop.run(), "");
  EXPECT_EQ(loop.record(2).cached_tokens, 0);
}

TEST(StatesTest, WhoseSequencesHaveNoStatesCopyNothing) {
  SchedLoop loop({}, states_settings());
  loop.add(test_sequence(1, test_prompt(70, 1), 3));
  loop.add(test_sequence(2, test_prompt(70, 1), 3));
  ASSERT_EQ(loop.run(), "");
  for (const auto& plan : loop.plans()) {
    EXPECT_TRUE(plan->copies_before.empty() && plan->copies_after.empty());
    for (const step::SlotEdit& edit : plan->slots) EXPECT_EQ(edit.state, step::kNoState);
  }
}

}  // namespace
}  // namespace rudder::sched
