// Models whose layers keep states, or one row of a token, or whose residual has several streams, on
// a GPU, through the real scheduler and executor: the same sequences alone, together, in chunks,
// going on from checkpoints, ahead, repeated and with drafts get the same tokens and logprobs, bit
// for bit, from graphs and op by op.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "metamorphic/harness.h"
#include "metamorphic/served_parts.h"
#include "metamorphic/tap_asks.h"
#include "rudder/cuda/cuda_ops.h"
#include "rudder/testing/random_proposer.h"

namespace rudder::metamorphic {
namespace {

class StatesOnGpu : public ::testing::TestWithParam<testing::TinyArch> {
 protected:
  static std::unique_ptr<step::Executor> executor(const step::Capacity& capacity,
                                                  bool enforce_eager = false) {
    cuda::CudaOpsSettings settings;
    settings.batch_invariant = true;
    settings.tune = false;
    exec::DeviceExecutor::Model model;
    model.ops = value_of(cuda::make_cuda_ops(settings));
    model.spec = spec();
    model.weights = value_of(testing::random_weights(model.spec, *model.ops, kModelSeed));
    return value_of(start_executor(std::move(model), capacity, {.enforce_eager = enforce_eager}));
  }
  static model::ModelSpec spec() {
    model::ModelSpec spec = testing::tiny_spec(GetParam());
    use_served_parts(spec);
    return spec;
  }
  // Not every sequence fits at once.
  static step::Capacity tight() {
    step::Capacity capacity = kRoomy;
    capacity.num_blocks = 20;
    return capacity;
  }
};

TEST_P(StatesOnGpu, TogetherAndChunkedAsAlone) {
  const std::vector<Ask> asks = random_asks(16, 51);
  const std::vector<Got> alone = run_alone(*executor(kRoomy), asks);
  for (const int32_t budget : {512, 33, 9}) {
    for (const bool enforce_eager : {false, true}) {
      sched::SchedSettings settings = plain_settings();
      settings.max_num_batched_tokens = budget;
      expect_same(alone, run(*executor(kRoomy, enforce_eager), settings, asks).got,
                  "steps of " + std::to_string(budget));
    }
  }
}

TEST_P(StatesOnGpu, FromCheckpointsAheadAndRepeated) {
  const std::vector<Ask> asks = random_asks(24, 54, 100);
  const std::vector<Got> alone = run_alone(*executor(kRoomy), asks);
  sched::SchedSettings all = plain_settings();
  all.max_in_flight = 3;
  all.multi_step = 8;
  all.enable_prefix_caching = true;
  const Outcome outcome = run(*executor(tight()), all, asks);
  EXPECT_GT(outcome.stats.preemptions, 0u);
  EXPECT_GT(outcome.stats.prefix_hits, 0u);
  EXPECT_GT(outcome.stats.iterations, outcome.stats.steps);
  expect_same(alone, outcome.got, "from checkpoints");
}

TEST_P(StatesOnGpu, DraftedAsAlone) {
  const std::vector<Ask> asks = random_asks(16, 56, 80);
  const std::vector<Got> alone = run_alone(*executor(kRoomy), asks);
  const std::vector<std::vector<int32_t>> whole = wholes(asks, alone);
  for (const int32_t max_draft : {3, 7, 20}) {
    step::Capacity capacity = tight();
    capacity.drafts.max_draft = max_draft;
    testing::RandomProposer proposer(
        11, 160, [&](sched::SequenceId id) { return std::span<const int32_t>(whole[id.value]); });
    sched::SchedSettings settings = plain_settings();
    settings.max_in_flight = max_draft > 3 ? 3 : 1;
    settings.enable_prefix_caching = true;
    const Outcome outcome = run(*executor(capacity), settings, asks, &proposer);
    EXPECT_GT(outcome.stats.accepted_tokens, 20u);
    EXPECT_GT(outcome.stats.draft_tokens, outcome.stats.accepted_tokens + 50);
    expect_same(alone, outcome.got, "drafts of " + std::to_string(max_draft));
  }
}

class StreamsOnGpu : public StatesOnGpu {};

// Rows of streams are steered and captured, and the numbers that they are written by captured.
TEST_P(StreamsOnGpu, TappedAsAlone) {
  step::Capacity roomy = with_taps(kRoomy, GetParam());
  roomy.geometry = tapped_geometry(spec(), tensor::DType::kBF16);
  std::vector<Ask> asks = random_asks(16, 58, 80);
  add_random_taps(asks, roomy, 7);
  const std::vector<Got> alone = run_alone(*executor(roomy), asks);
  for (const int32_t budget : {512, 33}) {
    for (const bool enforce_eager : {false, true}) {
      sched::SchedSettings settings = plain_settings();
      settings.max_num_batched_tokens = budget;
      expect_same(alone, run(*executor(roomy, enforce_eager), settings, asks).got,
                  "tapped, steps of " + std::to_string(budget));
    }
  }
}

constexpr testing::TinyArch kStreamArchs[] = {
    testing::TinyArch::kTwoStreams, testing::TinyArch::kBlockSums,   testing::TinyArch::kHyper,
    testing::TinyArch::kNormedSums, testing::TinyArch::kGatedAdds,   testing::TinyArch::kDepthAdds,
    testing::TinyArch::kDelayed,    testing::TinyArch::kGatedStreams};
std::string served_arch_name(const ::testing::TestParamInfo<testing::TinyArch>& test) {
  return std::string(testing::tiny_arch_name(test.param));
}

INSTANTIATE_TEST_SUITE_P(Streams, StatesOnGpu, ::testing::ValuesIn(kStreamArchs), served_arch_name);
INSTANTIATE_TEST_SUITE_P(Tiny, StreamsOnGpu, ::testing::ValuesIn(kStreamArchs), served_arch_name);
INSTANTIATE_TEST_SUITE_P(Tiny, StatesOnGpu,
                         ::testing::Values(testing::TinyArch::kDelta, testing::TinyArch::kSpaces,
                                           testing::TinyArch::kLatent),
                         served_arch_name);

}  // namespace
}  // namespace rudder::metamorphic
