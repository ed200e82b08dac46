// Steps of several iterations against single ones: the same sequences must get the same tokens and
// logprobs, bit for bit; op by op, from graphs, on a device that lags behind, with run-ahead on
// top.
#include <gtest/gtest.h>

#include <algorithm>

#include "metamorphic/harness.h"
#include "rudder/testing/async_ops.h"
#include "rudder/testing/tape_ops.h"

namespace rudder::metamorphic {
namespace {

constexpr step::Capacity kCapacity = {.num_slots = 16,
                                      .num_blocks = 60,
                                      .block_size = 16,
                                      .max_tokens_per_step = 192,
                                      .max_seq_len = 192,
                                      .vocab_size = 160,
                                      .max_in_flight = 3,
                                      .max_repeat = 8};

sched::SchedSettings settings(int32_t multi_step, int32_t in_flight) {
  sched::SchedSettings settings;
  settings.max_num_seqs = 16;
  settings.max_num_batched_tokens = 192;
  settings.multi_step = multi_step;
  settings.max_in_flight = in_flight;
  return settings;
}

void expect_same_outcome(const Outcome& expected, const Outcome& got, const std::string& what) {
  for (size_t i = 0; i < expected.got.size(); ++i) {
    EXPECT_FALSE(expected.got[i].tokens.empty());
    EXPECT_EQ(got.got[i].tokens, expected.got[i].tokens) << what << ", sequence " << i;
    EXPECT_EQ(got.got[i].logprobs, expected.got[i].logprobs) << what << ", sequence " << i;
    EXPECT_EQ(got.got[i].end, expected.got[i].end) << what << ", sequence " << i;
  }
}

class Repeat : public ::testing::TestWithParam<Pair> {};

// Stops, min_tokens, penalties, logprobs: all go on without the host.
TEST_P(Repeat, AsSingleSteps) {
  const auto& [backend, arch] = GetParam();
  const Backend& plain = backends()[backend];
  std::vector<Ask> asks = random_asks(32, 21, 80);
  for (size_t i = 0; i < asks.size(); ++i) asks[i].arrival = static_cast<int32_t>(i / 8 * 40);
  const Outcome single = run(*tiny_executor(plain, arch, kCapacity), settings(1, 1), asks);
  EXPECT_EQ(single.stats.iterations, single.stats.steps);
  const Backend taped = {"tape", [&] { return testing::make_tape_ops(plain.make()); }};
  for (const Backend& device : {plain, taped}) {
    for (const int32_t multi_step : {3, 8}) {
      for (const int32_t in_flight : {1, 3}) {
        const Outcome repeated =
            run(*tiny_executor(device, arch, kCapacity), settings(multi_step, in_flight), asks);
        EXPECT_GT(repeated.stats.iterations, 3 * repeated.stats.steps / 2);
        EXPECT_GT(repeated.masked_results, 0);  // ends within a step
        EXPECT_EQ(repeated.graph_steps > repeated.steps / 2, device.name == "tape");
        expect_same_outcome(
            single, repeated,
            device.name + " " + std::to_string(multi_step) + "x" + std::to_string(in_flight));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, Repeat, ::testing::ValuesIn(daily_pairs(all_backends())), pair_name);
INSTANTIATE_TEST_SUITE_P(Full, Repeat, ::testing::ValuesIn(other_pairs(all_backends())), pair_name);

TEST(RepeatOnALaggingDevice, AsSingleSteps) {
  std::vector<Ask> asks = random_asks(32, 22, 80);
  for (size_t i = 0; i < asks.size(); ++i) asks[i].arrival = static_cast<int32_t>(i / 8 * 40);
  const Backend& plain = backends().front();
  const auto expected =
      run(*tiny_executor(plain, testing::TinyArch::kPreNorm, kCapacity), settings(1, 1), asks);
  const Backend eager = {"async", [&] { return testing::make_async_ops(plain.make()); }};
  const Backend graphed = {
      "async_tape", [&] { return testing::make_async_ops(testing::make_tape_ops(plain.make())); }};
  for (const Backend& backend : {eager, graphed}) {
    const Outcome got =
        run(*tiny_executor(backend, testing::TinyArch::kPreNorm, kCapacity), settings(8, 3), asks);
    EXPECT_GT(got.stats.iterations, 3 * got.stats.steps / 2);
    expect_same_outcome(expected, got, backend.name);
  }
}

}  // namespace
}  // namespace rudder::metamorphic
