// --batch-invariant on a GPU, through the real scheduler and executor: the same sequences alone,
// together, in chunks, preempted, ahead and repeated get the same tokens and logprobs, bit for bit.
// Tiny models of a head_dim that the tuned attention kernels take; with graphs.
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

#include "metamorphic/harness.h"
#include "rudder/cuda/cuda_ops.h"

namespace rudder::metamorphic {
namespace {

using Param = std::tuple<tensor::DType, testing::TinyArch>;

class BatchInvariant : public ::testing::TestWithParam<Param> {
 protected:
  static std::unique_ptr<step::Executor> executor(const step::Capacity& capacity) {
    const auto& [dtype, arch] = GetParam();
    cuda::CudaOpsSettings settings;
    settings.linear_dtype = dtype;
    settings.kv_dtype = dtype;
    settings.batch_invariant = true;
    exec::DeviceExecutor::Model model;
    model.ops = value_of(cuda::make_cuda_ops(settings));
    model.spec = testing::tiny_spec(arch);
    for (model::LayerSpec& layer : model.spec.layers) {
      model::attention_of(layer)->head_dim = 64;
      model::attention_of(layer)->scale = 0.125f;
    }
    for (model::RopeSpec& rope : model.spec.ropes) rope.rotary_dim = 64;
    model.weights = value_of(testing::random_weights(model.spec, *model.ops, 7));
    return value_of(start_executor(std::move(model), capacity));
  }

  static void expect_as_alone(const std::vector<Ask>& asks, const Outcome& other) {
    expect_same(run_alone(*executor(kRoomy), asks), other.got, "as alone");
  }
};

TEST_P(BatchInvariant, TogetherAsAlone) {
  const std::vector<Ask> asks = random_asks(16, 1);
  expect_as_alone(asks, run(*executor(kRoomy), plain_settings(), asks));
}

TEST_P(BatchInvariant, ChunkedAsWhole) {
  const std::vector<Ask> asks = random_asks(8, 2);
  for (const int32_t budget : {9, 33}) {
    sched::SchedSettings chunked = plain_settings();
    chunked.max_num_batched_tokens = budget;
    expect_as_alone(asks, run(*executor(kRoomy), chunked, asks));
  }
}

TEST_P(BatchInvariant, PreemptedAheadAndRepeated) {
  const std::vector<Ask> asks = random_asks(24, 4, 100);
  step::Capacity tight = kRoomy;
  tight.num_blocks = 24;
  sched::SchedSettings all = plain_settings();
  all.max_in_flight = 3;
  all.multi_step = 8;
  all.enable_prefix_caching = true;
  const Outcome outcome = run(*executor(tight), all, asks);
  EXPECT_GT(outcome.stats.preemptions, 0u);
  EXPECT_GT(outcome.stats.iterations, outcome.stats.steps);
  expect_as_alone(asks, outcome);
}

// All but kScaled, which the backend refuses (cuda_test: Parts.WithoutKernelsAreRefusedByName).
constexpr testing::TinyArch kArchsWithKernels[] = {
    testing::TinyArch::kPreNorm, testing::TinyArch::kSandwich, testing::TinyArch::kPostNorm,
    testing::TinyArch::kHeadNorm, testing::TinyArch::kGated};

INSTANTIATE_TEST_SUITE_P(Tiny, BatchInvariant,
                         ::testing::Combine(::testing::Values(tensor::DType::kBF16,
                                                              tensor::DType::kF8E4M3),
                                            ::testing::ValuesIn(kArchsWithKernels)),
                         [](const auto& test) {
                           return std::string(tensor::dtype_name(std::get<0>(test.param))) + "_" +
                                  std::string(testing::tiny_arch_name(std::get<1>(test.param)));
                         });

}  // namespace
}  // namespace rudder::metamorphic
