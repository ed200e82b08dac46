// Sequences of a model whose layers keep a state of each (docs/contracts/cache.md), which the other
// suites serve as any other model: that what comes is what fp64 says, token by token from the
// first; that they would see a copy left out, one of a wrong checkpoint, and what drafts leave
// behind; and what the device is asked for.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "metamorphic/groups.h"
#include "metamorphic/harness.h"
#include "rudder/base/check.h"
#include "rudder/cpu/reference_ops.h"
#include "rudder/exec/check_trees.h"
#include "rudder/exec/state_memory.h"
#include "rudder/testing/decayed_sum.h"
#include "rudder/testing/random_proposer.h"
#include "rudder/testing/reference_model.h"

namespace rudder::metamorphic {
namespace {

using testing::TinyArch;

constexpr TinyArch kArch = TinyArch::kRecurrent;

enum class CopyFault : uint8_t { kNone, kNotRestored, kNotSaved, kRestoredTooFar };

// Changes the copies of the plans that it passes on.
class FaultyCopies final : public step::Executor {
 public:
  FaultyCopies(std::unique_ptr<step::Executor> inner, CopyFault fault)
      : inner_(std::move(inner)), fault_(fault) {}

  step::Capacity capacity() const override { return inner_->capacity(); }
  Result<step::Ticket> launch(std::shared_ptr<const step::StepPlan> plan) override {
    auto changed = std::make_shared<step::StepPlan>(*plan);
    num_restored_ += std::ssize(plan->copies_before);
    num_saved_ += std::ssize(plan->copies_after);
    if (fault_ == CopyFault::kNotRestored) changed->copies_before.clear();
    if (fault_ == CopyFault::kNotSaved) changed->copies_after.clear();
    if (fault_ == CopyFault::kRestoredTooFar) {
      for (step::ObjectCopy& copy : changed->copies_before) {
        if (const auto next = next_.find(copy.from.index); next != next_.end()) {
          copy.from.index = next->second;
        }
      }
    }
    note(*plan);
    return inner_->launch(std::move(changed));
  }
  Result<void> supply(step::Ticket ticket, std::span<const uint32_t> masks) override {
    return inner_->supply(ticket, masks);
  }
  Result<step::StepResult> collect(step::Ticket ticket) override { return inner_->collect(ticket); }
  bool ready(step::Ticket ticket) override { return inner_->ready(ticket); }

  int64_t num_restored() const { return num_restored_; }
  int64_t num_saved() const { return num_saved_; }

 private:
  // Which checkpoint of a sequence was made behind which.
  void note(const step::StepPlan& plan) {
    for (const step::ObjectCopy& copy : plan.copies_before) last_[copy.to.index] = copy.from.index;
    for (const step::ObjectCopy& copy : plan.copies_after) {
      const auto [last, is_first] = last_.try_emplace(copy.from.index, copy.to.index);
      if (!is_first) next_[last->second] = copy.to.index;
      last->second = copy.to.index;
    }
  }

  const std::unique_ptr<step::Executor> inner_;
  const CopyFault fault_;
  std::map<int64_t, int64_t> last_;  // by state
  std::map<int64_t, int64_t> next_;  // by checkpoint
  int64_t num_restored_ = 0;
  int64_t num_saved_ = 0;
};

bool is_same(const std::vector<Got>& a, const std::vector<Got>& b) {
  return std::ranges::equal(a, b, [](const Got& x, const Got& y) {
    return x.tokens == y.tokens && x.logprobs == y.logprobs;
  });
}

// Three of four go on from the prefixes of those before them.
std::vector<Ask> shared_asks() {
  std::vector<Ask> asks = random_asks(12, 21, 60);
  for (size_t i = 0; i < asks.size(); ++i) {
    asks[i].arrival = static_cast<int32_t>(20 * i);
    if (i % 4 == 0) continue;
    const auto begin = asks[i - 1].prompt.begin();
    const auto shared = std::min<ptrdiff_t>(std::ssize(asks[i - 1].prompt), 35);
    const auto added = static_cast<int32_t>(shared);
    asks[i].prompt.insert(asks[i].prompt.begin(), begin, begin + shared);
    asks[i].max_len = std::min(asks[i].max_len + added, kRoomy.max_seq_len);
  }
  return asks;
}

sched::SchedSettings sharing_settings() {
  sched::SchedSettings settings = plain_settings();
  settings.enable_prefix_caching = true;
  settings.max_num_batched_tokens = 60;
  settings.max_in_flight = 2;
  return settings;
}

TEST(States, TokensAreThoseOfTheFormulas) {
  auto remembering = std::make_unique<testing::RememberingOps>();
  const testing::RememberingOps& ops = *remembering;
  exec::DeviceExecutor::Model model;
  model.ops = std::move(remembering);
  model.spec = testing::tiny_spec(kArch);
  model.weights = value_of(testing::random_weights(model.spec, *model.ops, kModelSeed));
  const model::ModelSpec spec = model.spec;
  const model::Weights weights = model.weights;
  std::vector<Ask> asks = shared_asks();
  asks.resize(4);
  for (Ask& ask : asks) {
    ask.sampling = {};
    ask.sampling.temperature = 0;
    ask.max_len = static_cast<int32_t>(ask.prompt.size()) + 20;
  }
  const auto executor = value_of(start_executor(std::move(model), kRoomy));
  const Outcome got = run(*executor, sharing_settings(), asks);
  EXPECT_GT(got.stats.prefix_hits, 0u);
  for (size_t i = 0; i < asks.size(); ++i) {
    std::vector<int32_t> ids = asks[i].prompt;
    for (const int32_t token : got.got[i].tokens) {
      const testing::Matrix logits = testing::reference_forward(spec, weights, ops, ids);
      const auto last = logits.values.end() - logits.cols;
      ASSERT_EQ(token, std::max_element(last, logits.values.end()) - last)
          << "sequence " << i << ", token " << ids.size();
      ids.push_back(token);
    }
  }
}

TEST(States, ACopyLeftOutOrOfAWrongCheckpointShows) {
  const std::vector<Ask> asks = shared_asks();
  for (const Backend& backend : backends()) {
    const std::vector<Got> alone = run_alone(*tiny_executor(backend, kArch, kRoomy), asks);
    for (const CopyFault fault : {CopyFault::kNone, CopyFault::kNotRestored, CopyFault::kNotSaved,
                                  CopyFault::kRestoredTooFar}) {
      FaultyCopies executor(tiny_executor(backend, kArch, kRoomy), fault);
      const Outcome got = run(executor, sharing_settings(), asks);
      EXPECT_GT(executor.num_restored(), 5);
      EXPECT_GT(executor.num_saved(), executor.num_restored());
      EXPECT_EQ(is_same(alone, got.got), fault == CopyFault::kNone)
          << backend.name << ", fault " << static_cast<int>(fault);
    }
  }
}

// The next turn of a conversation of 8,000 tokens: it goes on from the checkpoint behind the first
// one's last block, and what it computes before its first token is a small part of what it would
// from nothing.
TEST(States, AHitOfALongTurnComputesAFewTokens) {
  constexpr int32_t kTurn = 8000;
  constexpr int32_t kAnswer = 8;
  std::vector<Ask> asks = random_asks(2, 31, 60);
  asks[0].prompt.clear();
  for (int32_t i = 0; i < kTurn; ++i) asks[0].prompt.push_back((i * 37 + i / 7 * 11 + 5) % 160);
  asks[0].arrival = 0;
  asks[1].prompt.insert(asks[1].prompt.begin(), asks[0].prompt.begin(), asks[0].prompt.end());
  asks[1].arrival = kTurn;  // long behind the first one's end
  for (Ask& ask : asks) ask.max_len = static_cast<int32_t>(ask.prompt.size()) + kAnswer;
  step::Capacity capacity = kRoomy;
  capacity.num_slots = 2;
  capacity.num_blocks = 1200;
  capacity.max_seq_len = kTurn + 256;
  capacity.states = {.count = 40,
                     .bytes = exec::StateMemory::state_bytes(testing::tiny_spec(TinyArch::kDelta)),
                     .checkpoint_blocks = 64};
  sched::SchedSettings settings = sharing_settings();
  settings.max_num_batched_tokens = 512;
  const Backend& backend = backends().back();
  const Outcome got = run(*tiny_executor(backend, TinyArch::kDelta, capacity), settings, asks);
  const auto prompt = static_cast<int32_t>(asks[1].prompt.size());
  const int32_t computed = prompt - got.got[1].cached_tokens;
  EXPECT_LE(computed, prompt * 15 / 100) << "of " << prompt;
  EXPECT_GE(got.stats.states.hits_without, got.stats.prefix_hits);
  asks[1].arrival = 0;
  const Outcome cold =
      run(*tiny_executor(backend, TinyArch::kDelta, capacity), settings, {asks[1]});
  EXPECT_EQ(cold.got[0].cached_tokens, 0);
  EXPECT_EQ(cold.got[0].tokens, got.got[1].tokens);
}

// A model that is wrong about drafts, and plainly right without.
std::unique_ptr<step::Executor> faulty_executor(testing::SumFault fault,
                                                const step::Capacity& capacity) {
  exec::DeviceExecutor::Model model;
  model.ops = cpu::make_reference_ops();
  model.spec = testing::tiny_spec(kArch);
  for (model::LayerSpec& layer : model.spec.layers) {
    if (auto* const toy = std::get_if<model::CustomMixer>(&layer.mixer)) {
      toy->kind = testing::make_decayed_sum(4, 16, fault);
    }
  }
  model.weights = value_of(testing::random_weights(model.spec, *model.ops, kModelSeed));
  return value_of(start_executor(std::move(model), capacity));
}

TEST(States, WhatDraftsLeaveBehindShows) {
  const std::vector<Ask> asks = random_asks(8, 22, 60);
  step::Capacity drafting = kRoomy;
  drafting.drafts.max_draft = 4;
  drafting.max_repeat = 1;
  const std::vector<Got> alone = run_alone(*tiny_executor(backends()[0], kArch, kRoomy), asks);
  const auto whole = wholes(asks, alone);
  for (const testing::SumFault fault :
       {testing::SumFault::kNone, testing::SumFault::kMovesOverDrafts,
        testing::SumFault::kForgetsAccepted}) {
    testing::RandomProposer proposer(
        4, 160, [&](sched::SequenceId id) { return std::span<const int32_t>(whole[id.value]); });
    sched::SchedSettings settings = sharing_settings();
    settings.max_in_flight = 1;
    const Outcome got = run(*faulty_executor(fault, drafting), settings, asks, &proposer);
    EXPECT_GT(got.stats.accepted_tokens, 20u);
    EXPECT_GT(got.stats.draft_tokens, got.stats.accepted_tokens + 20);
    EXPECT_EQ(is_same(alone, got.got), fault == testing::SumFault::kNone)
        << "fault " << static_cast<int>(fault);
  }
}

// Few states: sequences wait for them, checkpoints go before them.
TEST(States, FewOfThemAreWaitedFor) {
  const std::vector<Ask> asks = random_asks(16, 23, 60);
  const std::vector<Got> alone = run_alone(*tiny_executor(backends()[0], kArch, kRoomy), asks);
  for (const int32_t count : {2, 3, 7}) {
    step::Capacity few = kRoomy;
    few.states = {.count = count, .bytes = 1, .checkpoint_blocks = 1};
    const Outcome got = run(*tiny_executor(backends()[0], kArch, few), sharing_settings(), asks);
    EXPECT_TRUE(is_same(alone, got.got)) << count << " states";
  }
}

// When an executor is made or budgeted, by the key that asks for trees and with the reason; a
// request has no field that asks for one.
TEST(States, TreesOfDraftsAreRefusedWhereASettingAsksForThem) {
  const auto ops = cpu::make_reference_ops();
  const auto refused = [&](const model::ModelSpec& spec, const exec::StepLimits& limits) {
    const auto checked = exec::check_trees(limits, spec, *ops, 1);
    return checked ? std::string() : checked.error().where + ": " + checked.error().message;
  };
  const model::ModelSpec recurrent = testing::tiny_spec(kArch);
  const model::ModelSpec plain = testing::tiny_spec(TinyArch::kPreNorm);
  exec::StepLimits of_heads;
  for (int i = 0; i < 2; ++i) of_heads.draft_tree.tree.add(0);
  exec::StepLimits of_the_host;
  of_the_host.tree_key = "suffix_decoding_use_tree_spec";
  constexpr const char* kWhy = "a layer of the model keeps a state: drafts are chains alone";
  EXPECT_EQ(refused(recurrent, of_heads),
            std::string("speculative-config.speculative_token_tree: ") + kWhy);
  EXPECT_EQ(refused(recurrent, of_the_host),
            std::string("speculative-config.suffix_decoding_use_tree_spec: ") + kWhy);
  EXPECT_EQ(refused(recurrent, {}), "");
  EXPECT_EQ(refused(plain, of_heads), "");
  EXPECT_EQ(refused(plain, of_the_host), "");
}

TEST(States, TreesOfDraftsAreRefusedByName) {
  step::Capacity branching = kRoomy;
  branching.drafts.max_draft = 4;
  branching.drafts.takes_trees = true;
  set_check_hook([](const std::string& message) { throw std::logic_error(message); });
  std::string refused;
  try {
    tiny_executor(backends()[0], kArch, branching);
  } catch (const std::logic_error& error) {
    refused = error.what();
  }
  set_check_hook(nullptr);
  EXPECT_NE(refused.find("cpu-reference takes no trees, or what it runs"), std::string::npos)
      << refused;
}

// Each rank keeps the state of its heads.
TEST(States, RanksAndStagesKeepTheirShare) {
  const model::ModelSpec whole = testing::tiny_spec(kArch);
  const int64_t head = 16 * 4;  // bytes of a sum, beside a line
  EXPECT_EQ(exec::StateMemory::state_bytes(whole), 2 * (64 + 4 * head));
  const model::ModelSpec share = value_of(model::shard_spec(whole, {1, 2}));
  EXPECT_EQ(exec::StateMemory::state_bytes(share), 2 * (64 + 2 * head));
  const model::ModelSpec stage = model::stage_spec(
      whole, {.index = 1, .count = 2, .first_layer = 1, .num_layers = 2, .aux_layers = {}});
  EXPECT_EQ(exec::StateMemory::state_bytes(stage), 64 + 4 * head);
  const auto divided = model::shard_spec(whole, {0, 8});
  ASSERT_FALSE(divided);
  EXPECT_EQ(divided.error().where, "tensor-parallel-size");
  step::Capacity capacity = kRoomy;
  EXPECT_EQ(exec::StateMemory::row_bytes(whole, capacity), 0);
  capacity.drafts.max_draft = 3;
  EXPECT_EQ(exec::StateMemory::row_bytes(whole, capacity),
            2 * (capacity.num_slots + 1) * 4 * 4 * head);
  EXPECT_EQ(exec::StateMemory::row_bytes(testing::tiny_spec(TinyArch::kPreNorm), capacity), 0);
}

TEST(States, OthersPayNothing) {
  const auto executor = tiny_executor(backends()[0], TinyArch::kPreNorm, kRoomy);
  EXPECT_TRUE(executor->capacity().states.empty());
}

}  // namespace
}  // namespace rudder::metamorphic
