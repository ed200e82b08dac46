// Narrow graphs on a GPU, whose tapped kernels are others than its plain ones: sequences with taps
// at few points, and at many, get the bits that they get alone, whichever graphs their steps run.
#include "metamorphic/small_gpu_model.h"
#include "metamorphic/tap_asks.h"

namespace rudder::metamorphic {
namespace {

using Param = std::tuple<tensor::DType, testing::TinyArch>;

class NarrowGraphsOnGpu : public ::testing::TestWithParam<Param> {
 protected:
  static std::unique_ptr<step::Executor> executor(const step::Capacity& capacity,
                                                  const exec::NarrowRules& rules) {
    const auto& [dtype, arch] = GetParam();
    return value_of(
        start_executor(small_gpu_model(dtype, arch), capacity, {.narrow_graphs = rules}));
  }

  static step::Capacity capacity() {
    const testing::TinyArch arch = std::get<1>(GetParam());
    step::Capacity capacity = with_encodes(kRoomy, arch);
    model::ModelSpec spec = testing::tiny_spec(arch);
    use_served_parts(spec);
    capacity.geometry = tapped_geometry(spec, tensor::DType::kBF16);
    return capacity;
  }
};

TEST_P(NarrowGraphsOnGpu, AsAlone) {
  const step::Capacity roomy = capacity();
  std::vector<Ask> asks = random_masked_asks(14, 21, 80);
  add_few_taps(std::span(asks).first(9), roomy);
  add_random_taps(std::span(asks).subspan(9, 2), roomy, 9);
  for (size_t i = 0; i < asks.size(); ++i) asks[i].arrival = static_cast<int32_t>(i * 7);
  const exec::NarrowRules none{.least_steps = 1 << 30};
  const std::vector<Got> alone = run_alone(*executor(roomy, none), asks);
  sched::SchedSettings settings = plain_settings();
  settings.max_num_seqs = 4;
  settings.max_in_flight = 3;
  const auto outcome_of = [&](const exec::NarrowRules& rules) {
    Outcome outcome = run(*executor(roomy, rules), settings, asks);
    expect_same(alone, outcome.got, "as alone");
    return outcome;
  };
  const Outcome wide = outcome_of(none);
  for (const exec::NarrowRules& rules :
       {exec::NarrowRules{.least_steps = 1, .spacing = 0, .most_graphs = 100},
        exec::NarrowRules{.least_steps = 2, .spacing = 3, .most_graphs = 2, .idle_steps = 5}}) {
    EXPECT_GT(outcome_of(rules).captured_graphs, wide.captured_graphs + 3);
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, NarrowGraphsOnGpu,
                         ::testing::Combine(::testing::Values(tensor::DType::kBF16,
                                                              tensor::DType::kF8E4M3),
                                            ::testing::ValuesIn(testing::kTinyArchs)),
                         [](const auto& test) {
                           return std::string(tensor::dtype_name(std::get<0>(test.param))) + "_" +
                                  std::string(testing::tiny_arch_name(std::get<1>(test.param)));
                         });

}  // namespace
}  // namespace rudder::metamorphic
