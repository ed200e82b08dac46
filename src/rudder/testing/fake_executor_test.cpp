// The executor that other tests rely on: it computes what expected_run says, and sees each breach.
#include "rudder/testing/fake_executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "rudder/base/token_mask.h"

namespace rudder::testing {
namespace {

using step::LogitsWanted;
using step::SeqWork;
using step::SlotEdit;
using step::SlotId;
using step::StepPlan;
using step::TokenSource;

constexpr int32_t kMaxLen = 60;

FakeOptions options() {
  FakeOptions options;
  options.capacity = {.num_slots = 4,
                      .num_blocks = 16,
                      .block_size = 4,
                      .max_tokens_per_step = 32,
                      .max_seq_len = 64,
                      .vocab_size = 100,
                      .max_in_flight = 2};
  return options;
}

const std::vector<int32_t> kPrompt = {5, 6, 7, 8, 9, 10};

SlotEdit open(int32_t slot, uint32_t generation, std::vector<int32_t> blocks = {}) {
  SlotEdit edit;
  edit.slot = SlotId(slot);
  edit.generation = generation;
  if (!blocks.empty()) edit.blocks = {std::move(blocks)};
  edit.max_len = kMaxLen;
  return edit;
}

SeqWork prefill(int32_t slot, uint32_t generation, std::vector<int32_t> blocks) {
  SeqWork work;
  work.slot = SlotId(slot);
  work.generation = generation;
  work.q_len = static_cast<int32_t>(kPrompt.size());
  work.logits = LogitsWanted::kLast;
  if (!blocks.empty()) work.append_blocks = {std::move(blocks)};
  return work;
}

SeqWork decode(int32_t slot, uint32_t generation, int32_t kv_len,
               std::vector<int32_t> blocks = {}) {
  SeqWork work;
  work.slot = SlotId(slot);
  work.generation = generation;
  work.kv_len = kv_len;
  work.q_len = 1;
  work.tokens = TokenSource::kCarry;
  work.logits = LogitsWanted::kLast;
  if (!blocks.empty()) work.append_blocks = {std::move(blocks)};
  return work;
}

std::shared_ptr<StepPlan> plan(step::StepId id, std::vector<SlotEdit> slots,
                               std::vector<SeqWork> seqs) {
  auto made = std::make_shared<StepPlan>();
  made->id = id;
  made->slots = std::move(slots);
  made->seqs = std::move(seqs);
  made->tokens = kPrompt;
  return made;
}

TEST(FakeExecutorTest, GivesTheTokensOfExpectedRun) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    FakeOptions fake = options();
    fake.seed = seed;
    FakeExecutor executor(fake);
    const ExpectedRun expected = expected_run(kPrompt, {}, kMaxLen, 100);
    ASSERT_TRUE(executor.launch(plan(1, {open(0, 1)}, {prefill(0, 1, {3, 2})})));
    ASSERT_TRUE(executor.launch(plan(2, {}, {decode(0, 1, 6)})));
    const auto first = executor.collect({1});
    ASSERT_TRUE(executor.launch(plan(3, {}, {decode(0, 1, 7)})));
    const auto second = executor.collect({2});
    ASSERT_TRUE(executor.launch(plan(4, {}, {decode(0, 1, 8, {15})})));
    const auto third = executor.collect({3});
    const auto fourth = executor.collect({4});
    const std::vector<int32_t> tokens = {first->seqs[0].tokens[0], second->seqs[0].tokens[0],
                                         third->seqs[0].tokens[0], fourth->seqs[0].tokens[0]};
    EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), expected.tokens.begin()));
    EXPECT_TRUE(executor.violations().empty());
  }
}

TEST(FakeExecutorTest, EndsOnStopIdsAndMasksLateResults) {
  const ExpectedRun expected = expected_run(kPrompt, {}, kMaxLen, 100);
  SlotEdit edit = open(0, 1);
  edit.sampling.stop_ids = {expected.tokens[0]};
  FakeExecutor executor(options());
  ASSERT_TRUE(executor.launch(plan(1, {edit}, {prefill(0, 1, {0, 1})})));
  ASSERT_TRUE(executor.launch(plan(2, {}, {decode(0, 1, 6)})));
  EXPECT_EQ(executor.collect({1})->seqs[0].end, step::SeqEnd::kStopId);
  const auto late = executor.collect({2});
  EXPECT_TRUE(late->seqs[0].masked);
  EXPECT_TRUE(late->seqs[0].tokens.empty());
  EXPECT_EQ(executor.computed_tokens(), kPrompt.size());
}

TEST(FakeExecutorTest, MinTokensBansStopIds) {
  step::SamplingParams sampling;
  for (int32_t id = 0; id < 50; ++id) sampling.stop_ids.push_back(id);
  sampling.min_tokens = 10;
  const ExpectedRun run = expected_run(kPrompt, sampling, kMaxLen, 100);
  ASSERT_GT(run.tokens.size(), 10u);
  for (size_t i = 0; i < 10; ++i) EXPECT_GE(run.tokens[i], 50);
  EXPECT_EQ(run.end, step::SeqEnd::kStopId);
  EXPECT_LT(run.tokens.back(), 50);
}

TEST(FakeExecutorTest, AConstrainedSequenceWaitsForItsMaskAndKeepsToIt) {
  const ExpectedRun free = expected_run(kPrompt, {}, kMaxLen, 100);
  FakeExecutor executor(options());
  SeqWork first = prefill(0, 1, {0, 1});
  SeqWork second = prefill(1, 1, {2, 3});
  second.constrained = true;
  ASSERT_TRUE(executor.launch(plan(1, {open(0, 1), open(1, 1)}, {first, second})));
  std::vector<uint32_t> mask(mask_words(100));
  set_in_mask(mask, 77);
  ASSERT_TRUE(executor.supply({1}, mask));
  const auto result = executor.collect({1});
  EXPECT_EQ(result->seqs[0].tokens[0], free.tokens[0]);
  EXPECT_EQ(result->seqs[1].tokens[0], 77);
  EXPECT_TRUE(executor.violations().empty());
}

TEST(FakeExecutorTest, SamplingParametersAndContextMatter) {
  const auto tokens = [](const std::vector<int32_t>& prompt, float temperature, uint64_t seed,
                         float penalty) {
    step::SamplingParams sampling;
    sampling.temperature = temperature;
    sampling.seed = seed;
    sampling.repetition_penalty = penalty;
    return expected_run(prompt, sampling, kMaxLen, 100).tokens;
  };
  const auto base = tokens(kPrompt, 1, 1, 1);
  EXPECT_EQ(base, tokens(kPrompt, 1, 1, 1));
  EXPECT_NE(base, tokens(kPrompt, 1, 2, 1));
  EXPECT_NE(base, tokens(kPrompt, 1, 1, 2));
  EXPECT_NE(base, tokens({6, 5, 7, 8, 9, 10}, 1, 1, 1));
  EXPECT_EQ(tokens(kPrompt, 0, 1, 1), tokens(kPrompt, 0, 2, 1));
}

TEST(FakeExecutorTest, LogprobsAreGivenWhenAsked) {
  SlotEdit edit = open(0, 1);
  edit.sampling.num_logprobs = 3;
  FakeExecutor executor(options());
  ASSERT_TRUE(executor.launch(plan(1, {edit}, {prefill(0, 1, {0, 1})})));
  const auto result = executor.collect({1});
  ASSERT_EQ(result->seqs[0].logprobs.size(), 1u);
  const step::TokenLogprobs& logprobs = result->seqs[0].logprobs[0];
  ASSERT_EQ(logprobs.top.size(), 3u);
  EXPECT_EQ(logprobs.top[0].first, result->seqs[0].tokens[0]);
  EXPECT_EQ(logprobs.top[0].second, logprobs.logprob);
  EXPECT_LT(logprobs.logprob, 0);
}

TEST(FakeExecutorTest, TheClockMovesWithTheSteps) {
  VirtualClock clock;
  FakeOptions fake = options();
  fake.clock = &clock;
  fake.step_us = 100;
  fake.token_us = 1;
  FakeExecutor executor(fake);
  ASSERT_TRUE(executor.launch(plan(1, {open(0, 1)}, {prefill(0, 1, {0, 1})})));
  ASSERT_TRUE(executor.launch(plan(2, {}, {decode(0, 1, 6)})));
  EXPECT_FALSE(executor.ready({1}));
  clock.advance(106);
  EXPECT_TRUE(executor.ready({1}));
  EXPECT_FALSE(executor.ready({2}));
  ASSERT_TRUE(executor.collect({1}));
  EXPECT_EQ(executor.collect({2})->device_us, 101);
  EXPECT_EQ(clock.now_us(), 207);
}

TEST(FakeExecutorTest, ARepeatedStepIsCollectedIterationByIteration) {
  VirtualClock clock;
  FakeOptions fake = options();
  fake.capacity.max_repeat = 4;
  fake.clock = &clock;
  fake.step_us = 100;
  fake.token_us = 1;
  FakeExecutor executor(fake);
  ASSERT_TRUE(executor.launch(plan(1, {open(0, 1)}, {prefill(0, 1, {0, 1})})));
  auto repeated = plan(2, {}, {decode(0, 1, 6, {2})});
  repeated->repeat = 4;
  ASSERT_TRUE(executor.launch(repeated));
  std::vector<int32_t> tokens = executor.collect({1})->seqs[0].tokens;
  for (int32_t i = 0; i < 4; ++i) {
    EXPECT_FALSE(executor.ready({2}));
    const auto result = executor.collect({2});
    ASSERT_TRUE(result);
    EXPECT_EQ(result->iteration, i);
    EXPECT_EQ(clock.now_us(), 106 + (i + 1) * 101);
    tokens.push_back(result->seqs[0].tokens.at(0));
  }
  EXPECT_TRUE(executor.ready({2}));
  auto expected = expected_run(kPrompt, {}, kMaxLen, 100).tokens;
  expected.resize(5);
  EXPECT_EQ(tokens, expected);
  EXPECT_TRUE(executor.violations().empty());

  auto too_long = plan(3, {}, {decode(0, 1, 10)});  // blocks for two more tokens
  too_long->repeat = 3;
  EXPECT_FALSE(executor.launch(too_long));
  EXPECT_EQ(executor.violations().size(), 1u);
}

TEST(FakeExecutorTest, AFaultIsForGood) {
  FakeOptions fake = options();
  fake.fail_collect_at = 1;
  FakeExecutor executor(fake);
  ASSERT_TRUE(executor.launch(plan(1, {open(0, 1)}, {prefill(0, 1, {0, 1})})));
  EXPECT_FALSE(executor.collect({1}));
  EXPECT_FALSE(executor.launch(plan(2, {}, {decode(0, 1, 6)})));
  fake = options();
  fake.fail_launch_at = 1;
  FakeExecutor other(fake);
  EXPECT_FALSE(other.launch(plan(1, {open(0, 1)}, {prefill(0, 1, {0, 1})})));
}

TEST(FakeExecutorTest, NumericalSequencesEndWithoutTokenAndPoisonTheirCells) {
  FakeOptions fake = options();
  fake.numerical = [](uint64_t seed, int32_t position) { return seed == 9 && position == 6; };
  FakeExecutor executor(fake);
  SlotEdit edit = open(0, 1);
  edit.sampling.seed = 9;
  ASSERT_TRUE(executor.launch(plan(1, {edit}, {prefill(0, 1, {0, 1})})));
  const auto result = executor.collect({1});
  EXPECT_EQ(result->seqs[0].end, step::SeqEnd::kNumerical);
  EXPECT_TRUE(result->seqs[0].tokens.empty());
  EXPECT_TRUE(executor.violations().empty());
  SeqWork reader = prefill(1, 1, {2});
  reader.kv_len = 4;
  reader.q_len = 2;
  ASSERT_TRUE(executor.launch(plan(2, {open(1, 1, {0})}, {reader})));
  ASSERT_TRUE(executor.collect({2}));
  EXPECT_EQ(executor.violations().size(), 1u);
}

// Each breach of the contract after one good step, in flight or collected.
class BreachTest : public ::testing::Test {
 protected:
  BreachTest() : executor_(options()) {
    EXPECT_TRUE(executor_.launch(plan(1, {open(0, 1)}, {prefill(0, 1, {0, 1})})));
  }
  void expect_breach(std::vector<SlotEdit> slots, std::vector<SeqWork> seqs) {
    const auto launched = executor_.launch(plan(2, std::move(slots), std::move(seqs)));
    if (launched) executor_.collect({2});
    EXPECT_FALSE(executor_.violations().empty());
  }
  FakeExecutor executor_;
};

TEST_F(BreachTest, BlockGivenOutWhileInUse) {
  expect_breach({open(1, 1)}, {prefill(1, 1, {1, 2})});
}
TEST_F(BreachTest, BlockSharedWhileWritten) {
  SeqWork work = prefill(1, 1, {2});
  work.kv_len = 4;
  work.q_len = 2;
  expect_breach({open(1, 1, {0})}, {work});
}
TEST_F(BreachTest, SlotReopenedWhileInUse) {
  expect_breach({open(0, 2)}, {prefill(0, 2, {2, 3})});
}
TEST_F(BreachTest, SlotReopenedUnderItsGeneration) {
  ASSERT_TRUE(executor_.collect({1}));
  expect_breach({open(0, 1)}, {prefill(0, 1, {2, 3})});
}
TEST_F(BreachTest, RowOfAnotherGeneration) {
  expect_breach({}, {decode(0, 2, 6)});
}
TEST_F(BreachTest, RowTwice) {
  expect_breach({}, {decode(0, 1, 6), decode(0, 1, 7)});
}
TEST_F(BreachTest, NoBlockForTheToken) {
  ASSERT_TRUE(executor_.collect({1}));
  expect_breach({}, {decode(0, 1, 8)});
}
TEST_F(BreachTest, GapInTheKv) {
  ASSERT_TRUE(executor_.collect({1}));
  expect_breach({}, {decode(0, 1, 7)});
}
TEST_F(BreachTest, UnknownSlotAndBlock) {
  expect_breach({open(4, 1)}, {prefill(4, 1, {16, 2})});
  EXPECT_EQ(executor_.violations().size(), 2u);
}
TEST_F(BreachTest, PastMaxLen) {
  SlotEdit edit = open(1, 1);
  edit.max_len = static_cast<int32_t>(kPrompt.size());
  expect_breach({edit}, {prefill(1, 1, {2, 3})});
}
TEST_F(BreachTest, ConstrainedWithoutLogits) {
  SeqWork work = prefill(1, 1, {2, 3});
  work.logits = LogitsWanted::kNone;
  work.constrained = true;
  expect_breach({open(1, 1)}, {work});
}
TEST_F(BreachTest, CollectedWithoutMasks) {
  ASSERT_TRUE(executor_.collect({1}));
  SeqWork work = prefill(1, 1, {2, 3});
  work.constrained = true;
  expect_breach({open(1, 1)}, {work});
}
TEST_F(BreachTest, MasksForNobodyOrForTooMany) {
  EXPECT_TRUE(executor_.supply({1}, std::vector<uint32_t>(4)));
  EXPECT_EQ(executor_.violations().size(), 1u);
  SeqWork work = prefill(1, 1, {2, 3});
  work.constrained = true;
  ASSERT_TRUE(executor_.launch(plan(2, {open(1, 1)}, {work})));
  EXPECT_TRUE(executor_.supply({2}, std::vector<uint32_t>(8)));
  EXPECT_EQ(executor_.violations().size(), 2u);
}
TEST_F(BreachTest, SharedBlockOfAnotherPrefix) {
  ASSERT_TRUE(executor_.collect({1}));
  SeqWork work = prefill(1, 1, {3});
  work.kv_len = 4;
  work.q_len = 2;
  expect_breach({open(1, 1, {1})}, {work});  // block 1 holds positions 4 and 5
}
TEST_F(BreachTest, CarryWithoutASample) {
  ASSERT_TRUE(executor_.collect({1}));
  expect_breach({open(1, 1)}, {decode(1, 1, 0, {2})});
}

}  // namespace
}  // namespace rudder::testing
