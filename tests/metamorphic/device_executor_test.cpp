// The executor's own promises, seen through plans written by hand: launch does not wait, results
// come in order, late rows are masked (exec.X5), a broken row ends alone (exec.X3).
#include "rudder/exec/device_executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <new>
#include <thread>

#include "metamorphic/harness.h"
#include "rudder/testing/forwarding_ops.h"

namespace rudder::metamorphic {
namespace {

constexpr step::Capacity kCapacity = {.num_slots = 4,
                                      .num_blocks = 32,
                                      .block_size = 16,
                                      .max_tokens_per_step = 128,
                                      .max_seq_len = 128,
                                      .vocab_size = 160,
                                      .max_in_flight = 2,
                                      .max_repeat = 4,
                                      .drafts = {.max_draft = 3}};

step::SlotEdit open_slot(int32_t slot, std::vector<step::BlockId> blocks) {
  step::SlotEdit edit;
  edit.slot = step::SlotId(slot);
  edit.generation = 1;
  edit.sampling.temperature = 0;
  edit.blocks = {std::move(blocks)};
  edit.max_len = 64;
  return edit;
}

step::SeqWork prompt_of(int32_t slot, int32_t begin, int32_t q_len) {
  step::SeqWork work;
  work.slot = step::SlotId(slot);
  work.generation = 1;
  work.q_len = q_len;
  work.token_begin = begin;
  work.logits = step::LogitsWanted::kLast;
  return work;
}

step::SeqWork decode_of(int32_t slot, int32_t kv_len) {
  step::SeqWork work = prompt_of(slot, 0, 1);
  work.kv_len = kv_len;
  work.tokens = step::TokenSource::kCarry;
  return work;
}

std::shared_ptr<const step::StepPlan> plan_of(step::StepId id, std::vector<step::SlotEdit> slots,
                                              std::vector<step::SeqWork> seqs,
                                              std::vector<int32_t> tokens) {
  return std::make_shared<const step::StepPlan>(
      step::StepPlan{id, std::move(slots), std::move(seqs), std::move(tokens)});
}

TEST(DeviceExecutor, LateRowsAreMasked) {
  const auto executor = tiny_executor(backends().front(), testing::TinyArch::kPreNorm, kCapacity);
  // What greedy gives, to be made a stop id of.
  ASSERT_TRUE(
      executor->launch(plan_of(1, {open_slot(0, {0, 1})}, {prompt_of(0, 0, 3)}, {5, 6, 7})));
  auto first = executor->collect({1});
  ASSERT_TRUE(first);
  ASSERT_EQ(first->seqs[0].tokens.size(), 1u);

  step::SlotEdit stopping = open_slot(0, {0, 1});
  stopping.generation = 2;
  stopping.sampling.stop_ids = first->seqs[0].tokens;
  step::SeqWork again = prompt_of(0, 0, 3);
  again.generation = 2;
  step::SeqWork late = decode_of(0, 3);
  late.generation = 2;
  ASSERT_TRUE(executor->launch(plan_of(2, {stopping}, {again}, {5, 6, 7})));
  ASSERT_TRUE(
      executor->launch(plan_of(3, {open_slot(1, {2})}, {late, prompt_of(1, 0, 3)}, {5, 6, 7})));
  const auto stopped = executor->collect({2});
  ASSERT_TRUE(stopped);
  EXPECT_EQ(stopped->seqs[0].end, step::SeqEnd::kStopId);
  EXPECT_EQ(stopped->seqs[0].tokens, first->seqs[0].tokens);
  const auto after = executor->collect({3});
  ASSERT_TRUE(after);
  EXPECT_TRUE(after->seqs[0].masked);
  EXPECT_TRUE(after->seqs[0].tokens.empty());
  EXPECT_EQ(after->seqs[0].generation, 2u);
  EXPECT_FALSE(after->seqs[1].masked);
  EXPECT_EQ(after->seqs[1].tokens, first->seqs[0].tokens);
}

// Two of four tokens count, and the row behind them was launched before anybody knew.
TEST(DeviceExecutor, ARowBehindDraftsBeginsWhereItsSlotEnds) {
  const auto executor = tiny_executor(backends().front(), testing::TinyArch::kPreNorm, kCapacity);
  std::vector<int32_t> greedy;
  ASSERT_TRUE(
      executor->launch(plan_of(1, {open_slot(0, {0, 1})}, {prompt_of(0, 0, 3)}, {5, 6, 7})));
  for (step::StepId id = 1; id <= 6; ++id) {
    const auto result = executor->collect({id});
    ASSERT_TRUE(result);
    greedy.push_back(result->seqs[0].tokens.at(0));
    ASSERT_TRUE(
        executor->launch(plan_of(id + 1, {}, {decode_of(0, 2 + static_cast<int32_t>(id))}, {})));
  }
  ASSERT_TRUE(executor->collect({7}));

  step::SlotEdit again = open_slot(0, {0, 1});
  again.generation = 2;
  step::SeqWork prompt = prompt_of(0, 0, 3);
  step::SeqWork drafted = decode_of(0, 3);
  drafted.q_len = 4;
  drafted.num_draft = 3;
  drafted.logits = step::LogitsWanted::kAll;
  step::SeqWork behind = decode_of(0, 7);  // at most
  for (step::SeqWork* work : {&prompt, &drafted, &behind}) work->generation = 2;
  const int32_t wrong = (greedy[2] + 1) % 160;
  ASSERT_TRUE(executor->launch(plan_of(8, {again}, {prompt}, {5, 6, 7})));
  ASSERT_TRUE(executor->launch(plan_of(9, {}, {drafted}, {greedy[1], wrong, greedy[3]})));
  ASSERT_TRUE(executor->collect({8}));
  ASSERT_TRUE(executor->launch(plan_of(10, {}, {behind}, {})));
  const auto verified = executor->collect({9});
  ASSERT_TRUE(verified);
  EXPECT_EQ(verified->seqs[0].tokens, (std::vector<int32_t>{greedy[1], greedy[2]}));
  const auto after = executor->collect({10});
  ASSERT_TRUE(after);
  EXPECT_EQ(after->seqs[0].tokens, (std::vector<int32_t>{greedy[3]}));
  behind.kv_len = 6;  // now known
  ASSERT_TRUE(executor->launch(plan_of(11, {}, {behind}, {})));
  const auto last = executor->collect({11});
  ASSERT_TRUE(last);
  EXPECT_EQ(last->seqs[0].tokens, (std::vector<int32_t>{greedy[4]}));
}

TEST(DeviceExecutor, ReadyOnceTheStepIsDone) {
  const auto executor = tiny_executor(backends().front(), testing::TinyArch::kPreNorm, kCapacity);
  ASSERT_TRUE(executor->launch(plan_of(4, {open_slot(0, {0, 1, 2, 3})}, {prompt_of(0, 0, 60)},
                                       std::vector<int32_t>(60, 9))));
  while (!executor->ready({4})) std::this_thread::yield();
  EXPECT_FALSE(executor->ready({5}));
  EXPECT_TRUE(executor->collect({4}));
}

// step.I9: an iteration is collected by itself, before the last has run.
TEST(DeviceExecutor, ARepeatedStepIsCollectedIterationByIteration) {
  const auto executor = tiny_executor(backends().front(), testing::TinyArch::kPreNorm, kCapacity);
  std::vector<int32_t> single;
  ASSERT_TRUE(executor->launch(plan_of(1, {open_slot(0, {0})}, {prompt_of(0, 0, 3)}, {5, 6, 7})));
  single.push_back(executor->collect({1})->seqs[0].tokens[0]);
  for (step::StepId id = 2; id <= 9; ++id) {
    const auto kv_len = static_cast<int32_t>(id) + 1;
    ASSERT_TRUE(executor->launch(plan_of(id, {}, {decode_of(0, kv_len)}, {})));
    single.push_back(executor->collect({id})->seqs[0].tokens[0]);
  }

  const auto repeated = [&](step::StepId id, int32_t kv_len) {
    step::StepPlan plan{id, {}, {decode_of(1, kv_len)}, {}};
    plan.repeat = 4;
    return std::make_shared<const step::StepPlan>(std::move(plan));
  };
  ASSERT_TRUE(executor->launch(plan_of(10, {open_slot(1, {1})}, {prompt_of(1, 0, 3)}, {5, 6, 7})));
  ASSERT_TRUE(executor->launch(repeated(11, 3)));
  std::vector<int32_t> tokens = executor->collect({10})->seqs[0].tokens;
  ASSERT_TRUE(executor->launch(repeated(12, 7)));
  for (const step::StepId id : {11u, 12u}) {
    for (int32_t i = 0; i < 4; ++i) {
      while (!executor->ready({id})) std::this_thread::yield();
      const auto result = executor->collect({id});
      ASSERT_TRUE(result);
      EXPECT_EQ(result->id, id);
      EXPECT_EQ(result->iteration, i);
      ASSERT_EQ(result->seqs[0].tokens.size(), 1u);
      tokens.push_back(result->seqs[0].tokens[0]);
    }
    EXPECT_TRUE(executor->ready({id}));
  }
  EXPECT_EQ(tokens, single);
}

TEST(DeviceExecutor, StopsWithARepeatedStepInFlight) {
  const auto executor = tiny_executor(backends().front(), testing::TinyArch::kPreNorm, kCapacity);
  step::StepPlan plan{1, {open_slot(1, {0})}, {prompt_of(1, 0, 1)}, {9}};
  plan.repeat = 4;
  ASSERT_TRUE(executor->launch(std::make_shared<const step::StepPlan>(std::move(plan))));
  ASSERT_TRUE(executor->collect({1}));
}

TEST(DeviceExecutor, StopsWithStepsInFlight) {
  const auto executor = tiny_executor(backends().front(), testing::TinyArch::kPreNorm, kCapacity);
  for (step::StepId id = 1; id <= 2; ++id) {
    ASSERT_TRUE(executor->launch(plan_of(id, {open_slot(static_cast<int32_t>(id), {0, 1, 2, 3})},
                                         {prompt_of(static_cast<int32_t>(id), 0, 60)},
                                         std::vector<int32_t>(60, 9))));
  }
}

TEST(DeviceExecutor, NaNEndsItsRowAlone) {
  exec::DeviceExecutor::Model model;
  model.ops = backends().front().make();
  model.spec = testing::tiny_spec(testing::TinyArch::kPreNorm);
  auto weights = testing::random_weights(model.spec, *model.ops, 7);
  ASSERT_TRUE(weights);
  model.weights = std::move(*weights);
  constexpr int32_t kPoison = 33;
  model.weights.embedding.rows(kPoison, 1).as<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  auto executor = start_executor(std::move(model), kCapacity);
  ASSERT_TRUE(executor);
  ASSERT_TRUE(
      (*executor)->launch(plan_of(1, {open_slot(0, {0}), open_slot(1, {1})},
                                  {prompt_of(0, 0, 3), prompt_of(1, 1, 3)}, {1, 2, 3, kPoison})));
  ASSERT_TRUE((*executor)->launch(plan_of(2, {}, {decode_of(0, 3), decode_of(1, 3)}, {})));
  const auto first = (*executor)->collect({1});
  ASSERT_TRUE(first);
  EXPECT_EQ(first->seqs[0].end, step::SeqEnd::kNone);
  EXPECT_EQ(first->seqs[1].end, step::SeqEnd::kNumerical);
  EXPECT_TRUE(first->seqs[1].tokens.empty());
  const auto second = (*executor)->collect({2});
  ASSERT_TRUE(second);
  EXPECT_EQ(second->seqs[0].end, step::SeqEnd::kNone);
  EXPECT_EQ(second->seqs[0].tokens.size(), 1u);
  EXPECT_TRUE(second->seqs[1].masked);
}

// A device whose products throw from now on.
class ThrowingOps final : public testing::PassingOps {
 public:
  ThrowingOps(std::unique_ptr<ops::Ops> inner, const std::atomic<bool>* throws)
      : PassingOps(std::move(inner)), throws_(throws) {}
  void linear(const ops::LinearArgs& args) override {
    if (*throws_) throw std::bad_alloc();
    PassingOps::linear(args);
  }

 private:
  const std::atomic<bool>* const throws_;
};

// exec.X6
TEST(DeviceExecutor, AnExceptionOnTheWorkerIsTheStepsError) {
  std::atomic<bool> throws{false};
  const Backend backend{"throwing", [&] {
                          return std::make_unique<ThrowingOps>(backends().front().make(), &throws);
                        }};
  const auto executor = tiny_executor(backend, testing::TinyArch::kPreNorm, kCapacity);
  ASSERT_TRUE(executor->launch(plan_of(1, {open_slot(1, {0})}, {prompt_of(1, 0, 3)}, {5, 6, 7})));
  ASSERT_TRUE(executor->collect({1}));
  throws = true;
  step::StepPlan repeated{2, {}, {decode_of(1, 3)}, {}};
  repeated.repeat = 2;
  ASSERT_TRUE(executor->launch(std::make_shared<const step::StepPlan>(std::move(repeated))));
  ASSERT_TRUE(executor->launch(plan_of(3, {}, {decode_of(1, 5)}, {})));
  const auto failed = executor->collect({2});
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kOverloaded);
  throws = false;  // the executor is dead all the same
  EXPECT_FALSE(executor->launch(plan_of(4, {}, {decode_of(1, 6)}, {})));
}

}  // namespace
}  // namespace rudder::metamorphic
