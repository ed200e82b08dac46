// The same sequences, run in different ways, must get the same tokens and the same logprobs, bit
// for bit: alone or together, whole or in chunks, from the prefix cache or computed, preempted or
// straight, with run-ahead or without (exec.X2). Greedy and sampled, under every kind of sampling
// parameter.
#include <gtest/gtest.h>

#include <random>

#include "metamorphic/harness.h"
#include "rudder/base/token_mask.h"

namespace rudder::metamorphic {
namespace {

class Metamorphic : public ::testing::TestWithParam<Pair> {
 protected:
  std::unique_ptr<step::Executor> executor(const step::Capacity& capacity) {
    return tiny_executor(backends()[std::get<0>(GetParam())], std::get<1>(GetParam()), capacity);
  }

  void expect_as_alone(const std::vector<Ask>& asks, const Outcome& other) {
    expect_same(run_alone(*executor(kRoomy), asks), other.got, "as alone");
  }
};

TEST_P(Metamorphic, TogetherAsAlone) {
  const std::vector<Ask> asks = random_asks(16, 1);
  expect_as_alone(asks, run(*executor(kRoomy), plain_settings(), asks));
}

TEST_P(Metamorphic, ChunkedAsWhole) {
  const std::vector<Ask> asks = random_asks(8, 2);
  for (const int32_t budget : {9, 33}) {
    sched::SchedSettings settings = plain_settings();
    settings.max_num_batched_tokens = budget;
    expect_as_alone(asks, run(*executor(kRoomy), settings, asks));
  }
}

TEST_P(Metamorphic, CachedAsComputed) {
  std::vector<Ask> asks = random_asks(16, 3);
  for (size_t i = 0; i < asks.size(); ++i) asks[i].arrival = static_cast<int32_t>(4 * i);
  sched::SchedSettings settings = plain_settings();
  settings.enable_prefix_caching = true;
  const Outcome cached = run(*executor(kRoomy), settings, asks);
  EXPECT_GT(cached.stats.prefix_hits, 0u);
  expect_as_alone(asks, cached);
}

TEST_P(Metamorphic, PreemptedAsStraight) {
  const std::vector<Ask> asks = random_asks(12, 4, 100);
  step::Capacity tight = kRoomy;
  tight.num_blocks = tight_blocks(std::get<1>(GetParam()));
  const Outcome preempted = run(*executor(tight), plain_settings(), asks);
  EXPECT_GT(preempted.stats.preemptions, 0u);
  expect_as_alone(asks, preempted);
}

TEST_P(Metamorphic, RunAheadAsStepByStep) {
  const std::vector<Ask> asks = random_asks(16, 5);
  sched::SchedSettings settings = plain_settings();
  settings.max_in_flight = 2;
  const Outcome ahead = run(*executor(kRoomy), settings, asks);
  EXPECT_GT(ahead.masked_results, 0);  // some sequence ended on a stop id with a result in flight
  expect_as_alone(asks, ahead);
}

TEST_P(Metamorphic, EverythingAtOnce) {
  std::mt19937 engine(6);
  std::vector<Ask> asks = random_asks(30, 6, 100);
  for (Ask& ask : asks) ask.arrival = static_cast<int32_t>(engine() % 30);
  step::Capacity tight = kRoomy;
  tight.num_blocks = 18;
  tight.max_in_flight = 3;
  sched::SchedSettings settings = plain_settings();
  settings.max_num_batched_tokens = 60;
  settings.max_in_flight = 3;
  settings.enable_prefix_caching = true;
  const Outcome all = run(*executor(tight), settings, asks);
  EXPECT_GT(all.stats.preemptions, 0u);
  EXPECT_GT(all.stats.prefix_hits, 0u);
  EXPECT_GT(all.masked_results, 0);
  expect_as_alone(asks, all);
}

// Masks come while the forward pass runs, and hang on every token before: what was run ahead, cut,
// cached or preempted must not show in them.
TEST_P(Metamorphic, ConstrainedAsAlone) {
  const std::vector<Ask> asks = random_masked_asks(24, 7, 100);
  const std::vector<Got> alone = run_alone(*executor(kRoomy), asks);
  for (size_t i = 0; i < asks.size(); ++i) {
    if (asks[i].mask == nullptr) continue;
    std::vector<int32_t> output;
    for (const int32_t token : alone[i].tokens) {
      EXPECT_TRUE(is_in_mask(asks[i].mask(output), token)) << "sequence " << i;
      output.push_back(token);
    }
  }
  const auto expect_same_as = [&](const char* what, const sched::SchedSettings& settings,
                                  const step::Capacity& capacity = kRoomy) {
    const Outcome got = run(*executor(capacity), settings, asks);
    EXPECT_GT(got.constrained_steps, 0) << what;
    expect_same(alone, got.got, what);
    return got;
  };
  sched::SchedSettings settings = plain_settings();
  expect_same_as("together", settings);
  settings.max_in_flight = 3;
  settings.multi_step = 4;
  EXPECT_GT(expect_same_as("run ahead", settings).masked_results, 0);
  settings.max_num_batched_tokens = 24;
  settings.enable_prefix_caching = true;
  step::Capacity tight = kRoomy;  // windows give blocks back: fewer are as tight
  tight.num_blocks = executor(kRoomy)->capacity().kv_groups.size() > 1 ? 10 : 12;
  EXPECT_GT(expect_same_as("everything", settings, tight).stats.preemptions, 0u);
}

// One block table for all layers, as if none had a window, against KV groups that give back what a
// window has passed: in chunks, cached, preempted and run ahead.
TEST(KvGroupsServing, AsOneTableForAllLayers) {
  std::mt19937 engine(8);
  std::vector<Ask> asks = random_asks(30, 6, 100);
  for (Ask& ask : asks) ask.arrival = static_cast<int32_t>(engine() % 30);
  for (const Backend& backend : backends()) {
    exec::DeviceExecutor::Model model;
    model.ops = backend.make();
    model.spec = testing::tiny_spec(testing::TinyArch::kSandwich);
    model.weights = value_of(testing::random_weights(model.spec, *model.ops, 7));
    model.kv = value_of(exec::make_kv_layout(model.spec, {.kv = model.ops->kv_format(),
                                                          .block_size = kRoomy.block_size,
                                                          .max_seq_len = kRoomy.max_seq_len,
                                                          .lookback = kRoomy.max_seq_len}));
    step::Capacity capacity = kRoomy;
    capacity.kv_groups = model.kv.groups;
    ASSERT_EQ(capacity.kv_groups, step::KvGroups(std::vector<step::KvGroup>{{.layers = 3}}));
    const auto whole = value_of(exec::DeviceExecutor::start(std::move(model), capacity, {}));
    step::Capacity tight = kRoomy;
    tight.num_blocks = 18;
    const auto grouped = tiny_executor(backend, testing::TinyArch::kSandwich, tight);
    ASSERT_EQ(grouped->capacity().kv_groups.size(), 3);
    sched::SchedSettings settings = plain_settings();
    settings.max_num_batched_tokens = 60;
    settings.max_in_flight = 3;
    settings.multi_step = 4;
    settings.enable_prefix_caching = true;
    const Outcome got = run(*grouped, settings, asks);
    EXPECT_GT(got.stats.prefix_hits, 0u) << backend.name;
    EXPECT_GT(got.stats.preemptions, 0u) << backend.name;
    EXPECT_GT(got.masked_results, 0) << backend.name;
    expect_same(run_alone(*whole, asks), got.got, backend.name);
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, Metamorphic, ::testing::ValuesIn(daily_pairs(all_backends())),
                         pair_name);
INSTANTIATE_TEST_SUITE_P(Full, Metamorphic, ::testing::ValuesIn(other_pairs(all_backends())),
                         pair_name);

}  // namespace
}  // namespace rudder::metamorphic
