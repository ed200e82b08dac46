// Stages that are groups of ranks: the results of one group of as many ranks, bit for bit, whatever
// runs in flight; and a typed error when one rank of one stage fails or stands still.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "metamorphic/guessers.h"
#include "metamorphic/harness.h"
#include "metamorphic/tap_asks.h"
#include "rudder/cpu/fast_ops.h"
#include "rudder/cpu/host_comm.h"
#include "rudder/cpu/reference_ops.h"
#include "rudder/exec/make_executor.h"
#include "rudder/exec/pipeline_executor.h"
#include "rudder/exec/stage_link.h"
#include "rudder/model/shard.h"
#include "rudder/model/stage.h"
#include "rudder/model/tap_geometry.h"
#include "rudder/step/group_executor.h"
#include "rudder/testing/forwarding_ops.h"

namespace rudder::metamorphic {
namespace {

using testing::TinyArch;
using StagedRankWrap = std::function<std::unique_ptr<ops::Ops>(int32_t stage, int32_t rank,
                                                               std::unique_ptr<ops::Ops>)>;

struct StagedRanks {
  int32_t num_stages = 1;
  int32_t num_ranks = 2;
  bool is_fast = false;
  bool has_taps = false;
  Guesser guesser = Guesser::kNone;
  StagedRankWrap wrap = {};
};

std::unique_ptr<ops::Ops> rank_ops(bool is_fast, std::shared_ptr<cpu::HostComm> comm) {
  if (!is_fast) return cpu::make_reference_rank(std::move(comm));
  return value_of(cpu::make_cpu_ops(
      {.dtype = tensor::DType::kBF16, .num_threads = 1, .isa = {}, .comm = std::move(comm)}));
}

std::unique_ptr<step::Executor> start_staged_rank(std::unique_ptr<ops::Ops> ops, TinyArch arch,
                                                  step::Capacity capacity, const StagedRanks& ask,
                                                  const model::Stage& stage,
                                                  std::shared_ptr<exec::StageLink> link) {
  const model::ModelSpec whole = testing::tiny_spec(arch);
  exec::DeviceExecutor::Model model;
  model.ops = std::move(ops);
  const ops::Rank rank = ops::rank_of(*model.ops);
  const model::ModelSpec part = value_of(model::shard_spec(whole, rank));
  model.weights = value_of(testing::random_weights(whole, *model.ops, 7, stage));
  model.spec = stage.is_alone() ? part : model::stage_spec(part, stage);
  add_guesser(model, whole, ask.guesser);
  add_guesser(capacity, ask.guesser);
  if (ask.has_taps) {
    capacity = with_encodes(capacity, arch);
    capacity.geometry = model::tap_geometry(part, model.ops->act_dtype(), rank);
  }
  model.kv = exec::stage_kv_layout(
      value_of(exec::make_kv_layout(part, {.dtype = model.ops->kv_dtype(),
                                           .block_size = capacity.block_size,
                                           .max_seq_len = capacity.max_seq_len,
                                           .lookback = model.ops->attention_lookback()})),
      stage);
  capacity.kv_groups = model.kv.groups;
  capacity.num_blocks *= model.kv.groups.size();
  return value_of(exec::DeviceExecutor::start(std::move(model), capacity, {.link = link}));
}

std::unique_ptr<step::Executor> staged_ranks(TinyArch arch, const step::Capacity& capacity,
                                             const StagedRanks& ask) {
  const model::ModelSpec whole = testing::tiny_spec(arch);
  auto stages = value_of(
      model::divide_layers(whole, ask.num_stages, tensor::DType::kF32, tensor::DType::kF32));
  join_guesser(stages, whole, ask.guesser);
  std::vector<std::shared_ptr<exec::StageLink>> links(static_cast<size_t>(ask.num_ranks));
  for (auto& link : links) {
    if (ask.num_stages == 1) break;
    link = std::make_shared<exec::StageLink>(ask.num_stages, capacity.max_in_flight);
  }
  std::vector<std::unique_ptr<step::Executor>> groups;
  for (const model::Stage& stage : stages) {
    std::vector<std::unique_ptr<step::Executor>> ranks;
    for (auto& comm : cpu::HostComm::make_group(ask.num_ranks)) {
      const int32_t rank = comm->rank().index;
      std::unique_ptr<ops::Ops> ops = rank_ops(ask.is_fast, std::move(comm));
      if (ask.wrap) ops = ask.wrap(stage.index, rank, std::move(ops));
      ranks.push_back(start_staged_rank(std::move(ops), arch, capacity, ask, stage,
                                        links[static_cast<size_t>(rank)]));
    }
    groups.push_back(step::GroupExecutor::of(std::move(ranks)));
  }
  if (groups.size() == 1) return std::move(groups.front());
  return std::make_unique<exec::PipelineExecutor>(std::move(groups));
}

sched::SchedSettings staged_ranks_settings(int32_t num_cohorts, int32_t multi_step = 1) {
  sched::SchedSettings settings = plain_settings();
  settings.max_num_batched_tokens = 60;
  settings.max_in_flight = 3;
  settings.multi_step = multi_step;
  settings.enable_prefix_caching = true;
  settings.num_cohorts = num_cohorts;
  return settings;
}

std::vector<Ask> arriving(std::vector<Ask> asks) {
  for (size_t i = 0; i < asks.size(); ++i) asks[i].arrival = static_cast<int32_t>(i * 7 % 23);
  return asks;
}

// Stages, ranks of each.
class StagesOfRanks : public ::testing::TestWithParam<std::tuple<int32_t, int32_t, TinyArch>> {
 protected:
  static int32_t num_stages() { return std::get<0>(GetParam()); }
  static int32_t num_ranks() { return std::get<1>(GetParam()); }
  static TinyArch arch() { return std::get<2>(GetParam()); }
};

TEST_P(StagesOfRanks, AsOneGroup) {
  const std::vector<Ask> asks = arriving(random_masked_asks(10, 11, 24));
  for (const bool is_fast : {false, true}) {
    const StagedRanks group = {.num_ranks = num_ranks(), .is_fast = is_fast};
    StagedRanks staged = group;
    staged.num_stages = num_stages();
    const std::vector<Got> expected = run_alone(*staged_ranks(arch(), kRoomy, group), asks);
    step::Capacity tight = kRoomy;
    tight.num_blocks = 18;
    const Outcome cohorts =
        run(*staged_ranks(arch(), tight, staged), staged_ranks_settings(num_stages()), asks);
    expect_same(expected, cohorts.got, "in cohorts");
    EXPECT_GT(cohorts.constrained_steps, 0);
    EXPECT_GT(cohorts.scored_steps, 0);
    const Outcome repeated =
        run(*staged_ranks(arch(), tight, staged), staged_ranks_settings(1, 4), asks);
    expect_same(expected, repeated.got, "run ahead and repeated");
  }
}

TEST_P(StagesOfRanks, SteerAndCaptureAsOneGroup) {
  const StagedRanks group = {.num_ranks = num_ranks(), .has_taps = true};
  StagedRanks staged = group;
  staged.num_stages = num_stages();
  const auto alone = staged_ranks(arch(), kRoomy, group);
  std::vector<Ask> asks = random_asks(8, 21, 20);
  add_random_taps(asks, alone->capacity(), 22);
  const std::vector<Got> expected = run(*alone, plain_settings(), asks).got;
  asks = arriving(std::move(asks));
  const auto executor = staged_ranks(arch(), kRoomy, staged);
  const Outcome got = run(*executor, staged_ranks_settings(num_stages()), asks);
  EXPECT_EQ(got.lost_tokens, 0);
  expect_same(expected, got.got, "taps");
  size_t num_captured = 0;
  for (const Got& one : expected) num_captured += one.captured.size();
  EXPECT_GT(num_captured, 0u);
}

TEST_P(StagesOfRanks, GuessOnTheLastStage) {
  const std::vector<Ask> asks = arriving(random_masked_asks(8, 31, 30));
  const StagedRanks group = {.num_ranks = num_ranks()};
  const std::vector<Got> expected = run_alone(*staged_ranks(arch(), kRoomy, group), asks);
  step::Capacity capacity = kRoomy;
  capacity.max_draft = 5;
  for (const Guesser guesser :
       {Guesser::kItself, Guesser::kOwnEmbedding, Guesser::kProduct, Guesser::kMedusa}) {
    if (!takes_guesser(arch(), guesser)) continue;
    StagedRanks staged = group;
    staged.num_stages = num_stages();
    staged.guesser = guesser;
    const Outcome got =
        run(*staged_ranks(arch(), capacity, staged), staged_ranks_settings(num_stages()), asks);
    expect_same(expected, got.got, guesser_name(guesser));
    EXPECT_GT(got.stats.draft_tokens, 50u);
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, StagesOfRanks,
                         ::testing::Values(std::tuple{2, 2, TinyArch::kPreNorm},
                                           std::tuple{3, 2, TinyArch::kSandwich},
                                           std::tuple{2, 2, TinyArch::kHeadNorm},
                                           std::tuple{2, 4, TinyArch::kPostNorm},
                                           std::tuple{2, 2, TinyArch::kGated}));

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
      const auto executor =
          staged_ranks(TinyArch::kHeadNorm, kRoomy, {.num_stages = 2, .wrap = wrap});
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
    settings.pipeline_parallel_size = num_stages;
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
    EXPECT_LT(stage.weight_bytes, group.memory.weight_bytes);
  }
  ASSERT_NE(group.lens, nullptr);
  ASSERT_NE(staged.lens, nullptr);
  const std::vector<float> row(static_cast<size_t>(group.spec.hidden), 0.5f);
  std::vector<steer::capture::LensToken> expected_top;
  std::vector<steer::capture::LensToken> top;
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
