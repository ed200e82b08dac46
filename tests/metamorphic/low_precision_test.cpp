// The decoder on a backend whose products take quantised rows: every operand has its own scale, and
// what comes out is the exact model but for rounding.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "metamorphic/harness.h"
#include "rudder/testing/low_precision_ops.h"

namespace rudder::metamorphic {
namespace {

constexpr step::Capacity kCapacity = {.num_slots = 8,
                                      .num_blocks = 128,
                                      .block_size = 16,
                                      .max_tokens_per_step = 128,
                                      .max_seq_len = 128,
                                      .vocab_size = 160,
                                      .max_in_flight = 1};

// The most likely next tokens after each of some prompts.
std::vector<std::map<int32_t, float>> next_tokens(step::Executor& executor) {
  std::vector<std::map<int32_t, float>> out;
  step::StepPlan plan;
  plan.id = 1;
  for (int32_t slot = 0; slot < kCapacity.num_slots; ++slot) {
    step::SlotEdit edit;
    edit.slot = step::SlotId(slot);
    edit.generation = 1;
    edit.sampling.temperature = 0;
    edit.sampling.num_logprobs = step::kMaxLogprobs;
    edit.blocks = {{slot}};
    edit.max_len = 64;
    plan.slots.push_back(edit);
    step::SeqWork work;
    work.slot = edit.slot;
    work.generation = 1;
    work.q_len = 9 + slot % 3;
    work.token_begin = static_cast<int32_t>(plan.tokens.size());
    work.logits = step::LogitsWanted::kLast;
    for (int32_t i = 0; i < work.q_len; ++i) plan.tokens.push_back((slot * 31 + i * i * 7) % 160);
    plan.seqs.push_back(work);
  }
  EXPECT_TRUE(executor.launch(in_groups(plan, executor)));
  const auto result = executor.collect({1});
  EXPECT_TRUE(result);
  for (const step::SeqResult& seq : result->seqs) {
    const auto& top = seq.logprobs.at(0).top;
    out.emplace_back(top.begin(), top.end());
  }
  return out;
}

class LowPrecision : public ::testing::TestWithParam<testing::TinyArch> {};

TEST_P(LowPrecision, IsTheExactModelButForRounding) {
  const Backend low = {"low", [] { return testing::make_low_precision_ops(); }};
  const auto exact = next_tokens(*tiny_executor(backends().front(), GetParam(), kCapacity));
  const auto rounded = next_tokens(*tiny_executor(low, GetParam(), kCapacity));
  double sum = 0;
  int shared = 0;
  for (size_t s = 0; s < exact.size(); ++s) {
    for (const auto& [token, logprob] : rounded[s]) {
      const auto found = exact[s].find(token);
      if (found == exact[s].end()) continue;
      sum += std::abs(double{found->second} - logprob);
      ++shared;
    }
  }
  RecordProperty("mean_difference", std::to_string(sum / shared));
  EXPECT_GE(shared, 8 * step::kMaxLogprobs / 2);
  EXPECT_LE(sum / shared, 0.3);
}

TEST_P(LowPrecision, TogetherAsAloneAndInChunks) {
  const Backend low = {"low", [] { return testing::make_low_precision_ops(); }};
  const std::vector<Ask> asks = random_asks(6, 21, 20);
  sched::SchedSettings settings;
  settings.max_num_seqs = 1;
  settings.max_num_batched_tokens = 128;
  settings.max_in_flight = 1;
  settings.enable_prefix_caching = false;
  const Outcome alone = run(*tiny_executor(low, GetParam(), kCapacity), settings, asks);
  settings.max_num_seqs = 6;
  settings.max_num_batched_tokens = 17;
  const Outcome together = run(*tiny_executor(low, GetParam(), kCapacity), settings, asks);
  for (size_t i = 0; i < asks.size(); ++i) {
    EXPECT_EQ(alone.got[i].tokens, together.got[i].tokens) << i;
    EXPECT_EQ(alone.got[i].logprobs, together.got[i].logprobs) << i;
  }
}

// Products take bf16, or fp8 with a scale a row: the model's rows are not those that the heads get.
TEST_P(LowPrecision, MedusaHeadsChangeNothing) {
  for (const tensor::DType dtype : {tensor::DType::kBF16, tensor::DType::kF8E4M3}) {
    const Backend low = {"low",
                         [dtype] { return testing::make_low_precision_ops({.linear = dtype}); }};
    const std::vector<Ask> asks = random_asks(6, 22, 20);
    sched::SchedSettings settings;
    settings.max_num_seqs = 6;
    settings.max_num_batched_tokens = 40;
    settings.max_in_flight = 1;
    settings.enable_prefix_caching = false;
    settings.pace_drafts = false;
    const Outcome plain = run(*tiny_executor(low, GetParam(), kCapacity), settings, asks);
    step::Capacity guessing = kCapacity;
    guessing.drafts.max_draft = 4;
    const Outcome guessed = run(*medusa_executor(low, GetParam(), false, guessing), settings, asks);
    EXPECT_GT(guessed.stats.draft_tokens, 50u);
    for (size_t i = 0; i < asks.size(); ++i) {
      EXPECT_EQ(plain.got[i].tokens, guessed.got[i].tokens) << i;
      EXPECT_EQ(plain.got[i].logprobs, guessed.got[i].logprobs) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, LowPrecision, ::testing::ValuesIn(testing::kTinyArchs),
                         [](const auto& test) {
                           return std::string(testing::tiny_arch_name(test.param));
                         });

}  // namespace
}  // namespace rudder::metamorphic
