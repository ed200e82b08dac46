// Stages that are groups of ranks: the results of one group of as many ranks, bit for bit, whatever
// runs in flight; and a typed error when one rank of one stage fails or stands still.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "metamorphic/staged_ranks.h"
#include "metamorphic/tap_asks.h"
#include "rudder/cpu/fast_ops.h"
#include "rudder/cpu/host_comm.h"
#include "rudder/cpu/reference_ops.h"
#include "rudder/exec/make_executor.h"
#include "rudder/testing/forwarding_ops.h"

namespace rudder::metamorphic {
namespace {

using testing::TinyArch;
using StagedRankWrap = std::function<std::unique_ptr<ops::Ops>(int32_t stage, int32_t rank,
                                                               std::unique_ptr<ops::Ops>)>;

std::unique_ptr<ops::Ops> rank_ops(bool is_fast, std::shared_ptr<cpu::HostComm> comm) {
  if (!is_fast) return cpu::make_reference_rank(std::move(comm));
  return value_of(cpu::make_cpu_ops(
      {.dtype = tensor::DType::kBF16, .num_threads = 1, .isa = {}, .comm = std::move(comm)}));
}

std::unique_ptr<step::Executor> cpu_ranks(const StagedRanks& ask, const step::Capacity& capacity,
                                          bool is_fast = false, const StagedRankWrap& wrap = {}) {
  std::vector<std::unique_ptr<ops::Ops>> devices;
  for (int32_t stage = 0; stage < ask.num_stages; ++stage) {
    for (auto& comm : cpu::HostComm::make_group(ask.num_ranks)) {
      const int32_t rank = comm->rank().index;
      devices.push_back(rank_ops(is_fast, std::move(comm)));
      if (wrap) devices.back() = wrap(stage, rank, std::move(devices.back()));
    }
  }
  return staged_ranks(ask, capacity, std::move(devices));
}

// Stages, ranks of each.
class StagesOfRanks : public ::testing::TestWithParam<std::tuple<int32_t, int32_t, TinyArch>> {
 protected:
  static int32_t num_stages() { return std::get<0>(GetParam()); }
  static int32_t num_ranks() { return std::get<1>(GetParam()); }
  static TinyArch arch() { return std::get<2>(GetParam()); }
  // With a layer for each stage.
  static StagedRanks group() {
    model::ModelSpec whole = testing::tiny_spec(arch());
    while (std::ssize(whole.layers) < num_stages()) whole.layers.push_back(whole.layers[1]);
    return {.arch = arch(), .whole = std::move(whole), .num_ranks = num_ranks()};
  }
  static StagedRanks staged() {
    StagedRanks staged = group();
    staged.num_stages = num_stages();
    return staged;
  }
};

TEST_P(StagesOfRanks, AsOneGroup) {
  const std::vector<Ask> asks = arriving(random_masked_asks(10, 11, 24));
  for (const bool is_fast : {false, true}) {
    const std::vector<Got> expected = run_alone(*cpu_ranks(group(), kRoomy, is_fast), asks);
    step::Capacity tight = kRoomy;
    tight.num_blocks = 18;
    const Outcome cohorts =
        run(*cpu_ranks(staged(), tight, is_fast), staged_settings(num_stages()), asks);
    expect_same(expected, cohorts.got, "in cohorts");
    EXPECT_GT(cohorts.constrained_steps, 0);
    EXPECT_GT(cohorts.scored_steps, 0);
    const Outcome repeated = run(*cpu_ranks(staged(), tight, is_fast), staged_settings(1, 4), asks);
    expect_same(expected, repeated.got, "run ahead and repeated");
  }
}

TEST_P(StagesOfRanks, SteerAndCaptureAsOneGroup) {
  StagedRanks tapped = group();
  tapped.has_taps = true;
  const auto alone = cpu_ranks(tapped, kRoomy);
  std::vector<Ask> asks = random_asks(8, 21, 20);
  add_random_taps(asks, alone->capacity(), 22);
  const std::vector<Got> expected = run(*alone, plain_settings(), asks).got;
  asks = arriving(std::move(asks));
  tapped.num_stages = num_stages();
  const auto executor = cpu_ranks(tapped, kRoomy);
  const Outcome got = run(*executor, staged_settings(num_stages()), asks);
  EXPECT_EQ(got.lost_tokens, 0);
  expect_same(expected, got.got, "taps");
  size_t num_captured = 0;
  for (const Got& one : expected) num_captured += one.captured.size();
  EXPECT_GT(num_captured, 0u);
}

TEST_P(StagesOfRanks, GuessOnTheLastStage) {
  const std::vector<Ask> asks = arriving(random_masked_asks(8, 31, 30));
  const std::vector<Got> expected = run_alone(*cpu_ranks(group(), kRoomy), asks);
  step::Capacity capacity = kRoomy;
  capacity.drafts.max_draft = 5;
  for (const Guesser guesser :
       {Guesser::kItself, Guesser::kOwnEmbedding, Guesser::kProduct, Guesser::kMedusa}) {
    if (!takes_guesser(arch(), guesser)) continue;
    StagedRanks guessing = staged();
    guessing.guesser = guesser;
    const Outcome got = run(*cpu_ranks(guessing, capacity), staged_settings(num_stages()), asks);
    expect_same(expected, got.got, guesser_name(guesser));
    EXPECT_GT(got.stats.draft_tokens, 50u);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Tiny, StagesOfRanks,
    ::testing::Values(std::tuple{2, 2, TinyArch::kPreNorm}, std::tuple{3, 2, TinyArch::kSandwich},
                      std::tuple{2, 2, TinyArch::kHeadNorm}, std::tuple{2, 4, TinyArch::kPostNorm},
                      std::tuple{4, 2, TinyArch::kHeadNorm}, std::tuple{2, 2, TinyArch::kGated}));

// At its second product.
class BadRankOps final : public testing::PassingOps {
 public:
  BadRankOps(std::unique_ptr<ops::Ops> inner, bool throws, const std::atomic<bool>& released)
      : PassingOps(std::move(inner)), throws_(throws), released_(released) {}

  void linear(const ops::LinearArgs& args) override {
    if (++num_products_ == 2) {
      if (throws_) throw std::bad_alloc();
      while (!released_) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    PassingOps::linear(args);
  }

 private:
  const bool throws_;
  const std::atomic<bool>& released_;
  int64_t num_products_ = 0;
};

step::StepPlan prompt_of_three(uint64_t id, int32_t slot) {
  step::StepPlan plan;
  plan.id = id;
  step::SlotEdit edit;
  edit.slot = step::SlotId(slot);
  edit.generation = 1;
  edit.sampling.temperature = 0;
  edit.blocks = {{slot}};
  edit.prompt_len = 3;
  edit.max_len = 10;
  plan.slots = {edit};
  step::SeqWork work;
  work.slot = edit.slot;
  work.generation = 1;
  work.q_len = 3;
  work.logits = step::LogitsWanted::kLast;
  plan.seqs = {work};
  plan.tokens = {1, 2, 3};
  return plan;
}

TEST(StagesOfRanksFailure, ARankOfAStageThatFailsOrStandsStillIsATypedErrorInTime) {
  for (const bool throws : {true, false}) {
    for (const auto& [bad_stage, bad_rank] : {std::pair{0, 1}, std::pair{1, 0}, std::pair{1, 1}}) {
      std::atomic<bool> released = false;
      const StagedRankWrap wrap = [&](int32_t stage, int32_t rank,
                                      std::unique_ptr<ops::Ops> inner) {
        if (stage != bad_stage || rank != bad_rank) return inner;
        return std::unique_ptr<ops::Ops>(
            std::make_unique<BadRankOps>(std::move(inner), throws, released));
      };
      const auto executor = cpu_ranks({.arch = TinyArch::kHeadNorm,
                                       .whole = testing::tiny_spec(TinyArch::kHeadNorm),
                                       .num_stages = 2},
                                      kRoomy, false, wrap);
      const auto begin = std::chrono::steady_clock::now();
      const auto first = executor->launch(in_groups(prompt_of_three(1, 0), *executor));
      ASSERT_TRUE(first);
      ASSERT_TRUE(executor->launch(in_groups(prompt_of_three(2, 1), *executor)));
      const auto result = executor->collect(*first);
      const auto took = std::chrono::steady_clock::now() - begin;
      ASSERT_FALSE(result) << "rank " << bad_rank << " of stage " << bad_stage;
      EXPECT_EQ(result.error().code, throws ? ErrorCode::kOverloaded : ErrorCode::kInternal)
          << result.error().to_string();
      EXPECT_LT(took, std::chrono::seconds(30)) << "rank " << bad_rank << " of " << bad_stage;
      EXPECT_FALSE(executor->launch(in_groups(prompt_of_three(3, 2), *executor)));
      released = true;
    }
  }
}

// Loaded from a checkpoint: each rank of each stage has its part, and the lens reads the heads of
// the last stage's ranks.
class GoldenStagesOfRanks : public ::testing::TestWithParam<const char*> {
 protected:
  static Result<exec::LoadedModel> load(int32_t num_stages) {
    const auto checkpoint = value_of(weights::Checkpoint::open_folder(
        std::string(RUDDER_SOURCE_DIR) + "/tests/golden/" + GetParam()));
    exec::ExecSettings settings;
    settings.max_model_len = 96;
    settings.kv_cache_memory_bytes = 4 << 20;
    settings.parallel.stages = num_stages;
    settings.capture_memory_mb = 1;
    exec::Ranks ranks;
    for (int32_t stage = 0; stage < num_stages; ++stage) {
      for (auto& comm : cpu::HostComm::make_group(2)) {
        ranks.push_back(rank_ops(true, std::move(comm)));
      }
    }
    return exec::load_model(*checkpoint, std::move(ranks), settings,
                            {.max_num_seqs = 8, .max_num_batched_tokens = 50}, {});
  }
};

TEST_P(GoldenStagesOfRanks, AsOneGroup) {
  const exec::LoadedModel group = value_of(load(1));
  const exec::LoadedModel staged = value_of(load(2));
  std::vector<Ask> asks = arriving(random_asks(6, 41, 24));
  for (Ask& ask : asks) {
    if (ask.prompt.size() > 60) ask.prompt.resize(60);
    ask.max_len = std::min(ask.max_len, static_cast<int32_t>(ask.prompt.size()) + 24);
  }
  sched::SchedSettings settings;
  settings.max_num_seqs = 8;
  settings.max_num_batched_tokens = 50;
  const std::vector<Got> expected = run(*group.executor, settings, asks).got;
  settings.num_cohorts = 2;
  expect_same(expected, run(*staged.executor, settings, asks).got, "2 stages of 2 ranks");
  EXPECT_EQ(staged.memory.stages.size(), 2u);
  for (const exec::MemoryBudget& stage : staged.memory.stages) {
    EXPECT_EQ(stage.num_ranks, 2);
    EXPECT_LT(stage.weights.bytes, group.memory.weights.bytes);
  }
  ASSERT_NE(group.lens, nullptr);
  ASSERT_NE(staged.lens, nullptr);
  const std::vector<float> row(static_cast<size_t>(group.spec.hidden), 0.5f);
  std::vector<tap::LensToken> expected_top;
  std::vector<tap::LensToken> top;
  ASSERT_TRUE(group.lens->read(row, 5, expected_top));
  ASSERT_TRUE(staged.lens->read(row, 5, top));
  ASSERT_EQ(top.size(), expected_top.size());
  for (size_t i = 0; i < top.size(); ++i) {
    EXPECT_EQ(top[i].token, expected_top[i].token);
    EXPECT_EQ(top[i].logprob, expected_top[i].logprob);
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, GoldenStagesOfRanks,
                         ::testing::Values("llama3", "gemma3", "qwen2"));

}  // namespace
}  // namespace rudder::metamorphic
