// The executor on a device that runs behind it: steps are enqueued ahead of those that sample their
// tokens, and nothing is read or written again too early.
#include <gtest/gtest.h>

#include "metamorphic/harness.h"
#include "rudder/testing/async_ops.h"
#include "rudder/testing/tape_ops.h"

namespace rudder::metamorphic {
namespace {

// A short longest sequence, so that what preempted ones bring back goes in several parts.
constexpr step::Capacity kCapacity = {.num_slots = 16,
                                      .num_blocks = 32,
                                      .block_size = 16,
                                      .max_tokens_per_step = 192,
                                      .max_seq_len = 192,
                                      .vocab_size = 160,
                                      .max_in_flight = 3};

class AsyncRunAhead : public ::testing::TestWithParam<bool> {};  // under masks

TEST_P(AsyncRunAhead, AsStepByStep) {
  std::vector<Ask> asks = GetParam() ? random_masked_asks(48, 31, 80) : random_asks(48, 31, 80);
  for (size_t i = 0; i < asks.size(); ++i) asks[i].arrival = static_cast<int32_t>(i / 12 * 30);
  sched::SchedSettings settings;
  settings.max_num_seqs = 16;
  settings.max_num_batched_tokens = 192;
  settings.max_in_flight = 1;
  const Backend& plain = backends().front();
  const auto expected =
      run(*tiny_executor(plain, testing::TinyArch::kPreNorm, kCapacity), settings, asks);
  settings.max_in_flight = 3;
  const Backend eager = {"async", [&] { return testing::make_async_ops(plain.make()); }};
  const Backend graphed = {
      "async_tape", [&] { return testing::make_async_ops(testing::make_tape_ops(plain.make())); }};
  const bool is_masked = GetParam();
  for (const Backend& backend : {eager, graphed}) {
    const Outcome got =
        run(*tiny_executor(backend, testing::TinyArch::kPreNorm, kCapacity), settings, asks);
    EXPECT_GT(got.masked_results, 0) << backend.name;
    EXPECT_TRUE(is_masked || got.stats.preemptions > 0) << backend.name;
    EXPECT_EQ(got.constrained_steps > 0, is_masked) << backend.name;
    for (size_t i = 0; i < asks.size(); ++i) {
      EXPECT_EQ(got.got[i].tokens, expected.got[i].tokens) << backend.name << ", sequence " << i;
      EXPECT_EQ(got.got[i].logprobs, expected.got[i].logprobs) << backend.name << ", " << i;
      EXPECT_EQ(got.got[i].end, expected.got[i].end) << backend.name << ", sequence " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Async, AsyncRunAhead, ::testing::Bool());

std::shared_ptr<const step::StepPlan> prompt_plan(step::StepId id, int32_t slot) {
  step::StepPlan plan;
  plan.id = id;
  step::SlotEdit edit;
  edit.slot = step::SlotId(slot);
  edit.generation = 1;
  edit.blocks = {{slot}};
  edit.max_len = 20;
  plan.slots = {edit};
  step::SeqWork work;
  work.slot = edit.slot;
  work.generation = 1;
  work.q_len = 3;
  work.logits = step::LogitsWanted::kLast;
  plan.seqs = {work};
  plan.tokens = {5, 6, 7};
  return std::make_shared<const step::StepPlan>(plan);
}

TEST(Async, AFaultComesOutOfCollectAndEndsTheExecutor) {
  const auto has_fault = std::make_shared<std::atomic<bool>>(false);
  const Backend faulty = {
      "faulty", [&] { return testing::make_async_ops(backends().front().make(), has_fault); }};
  const auto executor = tiny_executor(faulty, testing::TinyArch::kPreNorm, kCapacity);
  ASSERT_TRUE(executor->launch(prompt_plan(1, 0)));
  EXPECT_TRUE(executor->collect({1}));
  ASSERT_TRUE(executor->launch(prompt_plan(2, 1)));
  ASSERT_TRUE(executor->launch(prompt_plan(3, 2)));
  *has_fault = true;
  EXPECT_FALSE(executor->collect({2}));
  const auto after = executor->launch(prompt_plan(4, 3));
  ASSERT_FALSE(after);
  EXPECT_EQ(after.error().message, "device fault");
  EXPECT_FALSE(executor->collect({3}));
}

// Its worker waits for masks that never come.
TEST(Async, StopsWhileAStepWaitsForMasks) {
  const auto executor = tiny_executor(backends().front(), testing::TinyArch::kPreNorm, kCapacity);
  auto plan = std::make_shared<step::StepPlan>(*prompt_plan(1, 0));
  plan->seqs[0].constrained = true;
  ASSERT_TRUE(executor->launch(plan));
}

TEST(Async, StopsWithTheDeviceBehind) {
  const Backend backend = {
      "async_tape",
      [] { return testing::make_async_ops(testing::make_tape_ops(backends().front().make())); }};
  const auto executor = tiny_executor(backend, testing::TinyArch::kSandwich, kCapacity);
  for (step::StepId id = 1; id <= 3; ++id) {
    const auto plan = prompt_plan(id, static_cast<int32_t>(id));
    ASSERT_TRUE(executor->launch(in_groups(*plan, *executor)));
  }
}

}  // namespace
}  // namespace rudder::metamorphic
