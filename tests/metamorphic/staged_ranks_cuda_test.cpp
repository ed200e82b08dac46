// Stages of a pipeline that are groups of ranks, on GPUs: the results of one group of as many
// ranks, bit for bit where both are batch-invariant, whatever runs in flight. Where there are not
// four GPUs it is skipped by name.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>

#include "metamorphic/served_parts.h"
#include "metamorphic/staged_ranks.h"
#include "metamorphic/tap_asks.h"
#include "rudder/cuda/cuda_ops.h"

namespace rudder::metamorphic {
namespace {

using testing::TinyArch;

class GpuStagesOfRanks : public ::testing::TestWithParam<TinyArch> {
 protected:
  static constexpr int32_t kNumStages = 2;
  static constexpr int32_t kNumRanks = 2;

  void SetUp() override {
    cuda::load_kernels_early();
    int visible = 0;
    if (cudaGetDeviceCount(&visible) != cudaSuccess) visible = 0;
    if (visible < kNumStages * kNumRanks) GTEST_SKIP() << "needs 4 GPUs, " << visible << " visible";
  }

  static StagedRanks group() {
    StagedRanks ask = {.arch = GetParam(), .whole = testing::tiny_spec(GetParam())};
    use_served_parts(ask.whole);
    ask.num_ranks = kNumRanks;
    ask.change_head = [](model::DraftHeadSpec& head) {
      use_served_parts(head.layer);
      if (!head.is_product()) head.draft_vocab = 64;
    };
    return ask;
  }
  static StagedRanks staged() {
    StagedRanks ask = group();
    ask.num_stages = kNumStages;
    return ask;
  }
  static std::unique_ptr<step::Executor> on_gpus(const StagedRanks& ask,
                                                 const step::Capacity& capacity) {
    cuda::CudaOpsSettings settings;
    settings.batch_invariant = true;
    std::vector<int32_t> devices(static_cast<size_t>(ask.num_stages * ask.num_ranks));
    std::iota(devices.begin(), devices.end(), 0);
    return staged_ranks(
        ask, capacity,
        value_of(ask.num_stages == 1 ? cuda::make_cuda_ranks(settings, devices)
                                     : cuda::make_cuda_stages(settings, devices, ask.num_ranks)));
  }
};

TEST_P(GpuStagesOfRanks, AsOneGroup) {
  const std::vector<Ask> asks = arriving(random_masked_asks(10, 11, 40));
  const std::vector<Got> expected = run_alone(*on_gpus(group(), kRoomy), asks);
  step::Capacity tight = kRoomy;
  tight.num_blocks = 24;
  const Outcome cohorts = run(*on_gpus(staged(), tight), staged_settings(kNumStages), asks);
  expect_same(expected, cohorts.got, "in cohorts");
  EXPECT_GT(cohorts.graph_steps, 0);
  EXPECT_GT(cohorts.constrained_steps, 0);
  EXPECT_GT(cohorts.scored_steps, 0);
  const Outcome repeated = run(*on_gpus(staged(), tight), staged_settings(1, 4), asks);
  expect_same(expected, repeated.got, "run ahead and repeated");
}

TEST_P(GpuStagesOfRanks, SteerAndCaptureAsOneGroup) {
  StagedRanks ask = group();
  ask.has_taps = true;
  std::vector<Ask> asks = random_asks(8, 21, 24);
  std::vector<Got> expected;
  {
    const auto executor = on_gpus(ask, kRoomy);
    add_random_taps(asks, executor->capacity(), 22);
    expected = run(*executor, plain_settings(), asks).got;
  }
  ask.num_stages = kNumStages;
  asks = arriving(std::move(asks));
  const Outcome got = run(*on_gpus(ask, kRoomy), staged_settings(kNumStages), asks);
  EXPECT_EQ(got.lost_tokens, 0);
  EXPECT_GT(got.graph_steps, 0);
  expect_same(expected, got.got, "taps");
  size_t num_captured = 0;
  for (const Got& one : expected) num_captured += one.captured.size();
  EXPECT_GT(num_captured, 0u);
}

TEST_P(GpuStagesOfRanks, GuessOnTheLastStage) {
  const std::vector<Ask> asks = arriving(random_masked_asks(8, 31, 30));
  const std::vector<Got> expected = run_alone(*on_gpus(group(), kRoomy), asks);
  step::Capacity capacity = kRoomy;
  capacity.drafts.max_draft = 5;
  for (const Guesser guesser : kTrainedHeads) {
    if (!takes_guesser(GetParam(), guesser)) continue;
    StagedRanks guessing = staged();
    guessing.guesser = guesser;
    const Outcome got = run(*on_gpus(guessing, capacity), staged_settings(kNumStages), asks);
    expect_same(expected, got.got, guesser_name(guesser));
    EXPECT_GT(got.stats.draft_tokens, 50u);
  }
}

INSTANTIATE_TEST_SUITE_P(Gpus, GpuStagesOfRanks,
                         ::testing::Values(TinyArch::kPreNorm, TinyArch::kSandwich,
                                           TinyArch::kHeadNorm, TinyArch::kGated,
                                           TinyArch::kTwoWidths),
                         [](const auto& test) {
                           return std::string(testing::tiny_arch_name(test.param));
                         });

}  // namespace
}  // namespace rudder::metamorphic
