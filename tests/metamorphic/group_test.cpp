// Ranks of a group against one device alone: the same tokens, and logprobs and captured rows as
// near as sums in another order are; every rank with the same bits after every op; batch-invariant
// as one device is; and a typed error in time when a rank fails or stands still.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <numeric>
#include <random>

#include "metamorphic/groups.h"
#include "metamorphic/misdeed.h"
#include "metamorphic/tap_asks.h"
#include "rudder/exec/make_executor.h"
#include "rudder/model/shard.h"
#include "rudder/model/tap_geometry.h"
#include "rudder/testing/random_proposer.h"

namespace rudder::metamorphic {
namespace {

using testing::TinyArch;

class Group : public ::testing::TestWithParam<GroupParam> {
 protected:
  static const RankBackend& backend() { return rank_backends()[std::get<0>(GetParam())]; }
  static TinyArch arch() { return std::get<1>(GetParam()); }
  static int32_t num_ranks() { return std::get<2>(GetParam()); }
  // The weights of a gate are not normalised: errors grow with the number of keys that it adds.
  static double near_enough() { return arch() == TinyArch::kGated ? 5e-5 : kNear; }

  static std::unique_ptr<step::Executor> group(const step::Capacity& capacity, GroupAsk ask = {}) {
    ask.num_ranks = num_ranks();
    return alone(capacity, std::move(ask));
  }
  static std::unique_ptr<step::Executor> alone(const step::Capacity& capacity, GroupAsk ask = {}) {
    ask.num_heads = heads_for(num_ranks());
    return tiny_group(backend(), arch(), capacity, ask);
  }
};

TEST_P(Group, AsOneDevice) {
  const std::vector<Ask> asks = random_masked_asks(12, 11, 30);
  expect_nearly_same(run(*alone(kRoomy), plain_settings(), asks).got,
                     run(*group(kRoomy), plain_settings(), asks).got, near_enough());
}

class GroupBits : public Group {};

TEST_P(GroupBits, RanksHaveTheSameBitsInEveryStepAndBatchesDoNotMatter) {
  const std::vector<Ask> asks = spread_asks(random_masked_asks(12, 6, 40));
  std::vector<HashingOps::Hashes> hashes;
  hashes.reserve(static_cast<size_t>(num_ranks()));
  const RankWrap wrap = [&](std::unique_ptr<ops::Ops> inner) -> std::unique_ptr<ops::Ops> {
    return std::make_unique<HashingOps>(std::move(inner), hashes.emplace_back());
  };
  step::Capacity tight = kRoomy;
  tight.num_blocks = 18;
  const Outcome busy = [&] {
    const auto executor = group(tight, {.wrap = wrap});
    return run(*executor, busy_settings(), asks);
  }();
  EXPECT_GT(busy.constrained_steps, 0);
  EXPECT_GT(busy.scored_steps, 0);
  ASSERT_EQ(static_cast<int32_t>(hashes.size()), num_ranks());
  EXPECT_GT(hashes[0].size(), 500u);
  for (const HashingOps::Hashes& rank : hashes) EXPECT_EQ(rank, hashes[0]);
  expect_same(run_alone(*group(kRoomy), asks), busy.got, "as alone");
}

TEST_P(Group, SteersAndCapturesAsOneDevice) {
  const auto executor = group(kRoomy, {.has_taps = true});
  std::vector<Ask> asks = random_asks(12, 21, 24);
  add_random_taps(asks, executor->capacity(), 22);
  const Outcome got = run(*executor, plain_settings(), asks);
  EXPECT_EQ(got.lost_tokens, 0);
  size_t num_captured = 0;
  for (const Got& one : got.got) num_captured += one.captured.size();
  EXPECT_GT(num_captured, 0u);
  expect_nearly_same(run(*alone(kRoomy, {.has_taps = true}), plain_settings(), asks).got, got.got,
                     near_enough(), 2e-4);
}

// Also at attn_z and mlp_act, where each rank has a part of the row, and of dictionaries that are
// encoded whole; of fewer blocks than there are sequences.
TEST_P(GroupBits, StepsWithTapsHaveTheSameBitsOnEveryRankAndInEveryBatch) {
  std::vector<HashingOps::Hashes> hashes;
  hashes.reserve(static_cast<size_t>(num_ranks()));
  const RankWrap wrap = [&](std::unique_ptr<ops::Ops> inner) -> std::unique_ptr<ops::Ops> {
    return std::make_unique<HashingOps>(std::move(inner), hashes.emplace_back());
  };
  step::Capacity tight = kRoomy;
  tight.num_blocks = 18;
  std::vector<Ask> asks = random_asks(12, 61, 30);
  const Outcome busy = [&] {
    const auto executor = group(tight, {.has_taps = true, .wrap = wrap});
    add_random_taps(asks, executor->capacity(), 62);
    asks = spread_asks(std::move(asks));
    return run(*executor, busy_settings(), asks);
  }();
  EXPECT_EQ(busy.lost_tokens, 0);
  ASSERT_EQ(static_cast<int32_t>(hashes.size()), num_ranks());
  for (const HashingOps::Hashes& rank : hashes) EXPECT_EQ(rank, hashes[0]);
  expect_same(run_alone(*group(kRoomy, {.has_taps = true}), asks), busy.got, "as alone");
}

// Each rank has some of the heads. Also where a step ends at its last attention, and in any batch.
TEST_P(Group, PatternsOfEveryHeadAreThoseOfOneDevice) {
  const auto executor = group(kRoomy, {.has_taps = true});
  std::vector<Ask> asks = random_asks(8, 71, 4);
  add_every_pattern(asks, executor->capacity());
  sched::SchedSettings chunked = plain_settings();
  chunked.max_num_batched_tokens = 24;
  chunked.max_in_flight = 3;
  const std::vector<Got> got = run(*executor, chunked, asks).got;
  for (size_t i = 0; i < asks.size(); ++i) {
    EXPECT_EQ(got[i].captured.size(), asks[i].prompt.size());
  }
  expect_same(run_alone(*group(kRoomy, {.has_taps = true}), asks), got, "as alone");
  expect_nearly_same(run(*alone(kRoomy, {.has_taps = true}), plain_settings(), asks).got, got,
                     near_enough(), 1e-4);
}

class GroupDrafts : public Group {};

TEST_P(GroupDrafts, VerifiesDraftsAsOneDevice) {
  const std::vector<Ask> asks = random_asks(8, 31, 40);
  step::Capacity capacity = kRoomy;
  capacity.drafts.max_draft = 4;
  const std::vector<Got> expected = run(*alone(kRoomy), plain_settings(), asks).got;
  std::vector<int32_t> whole;
  testing::RandomProposer proposer(5, 160, [&](sched::SequenceId id) {
    whole = asks[id.value].prompt;
    const auto& tokens = expected[id.value].tokens;
    whole.insert(whole.end(), tokens.begin(), tokens.end());
    return std::span<const int32_t>(whole);
  });
  sched::SchedSettings settings = plain_settings();
  settings.max_in_flight = 2;
  expect_nearly_same(expected, run(*group(capacity), settings, asks, &proposer).got, near_enough());
}

// Sums of bf16 products round to other tokens than those of one device; bits are compared all the
// same.
INSTANTIATE_TEST_SUITE_P(Tiny, Group, ::testing::ValuesIn(group_params({0, 1}).daily), group_name);
INSTANTIATE_TEST_SUITE_P(Full, Group, ::testing::ValuesIn(group_params({0, 1}).others), group_name);
INSTANTIATE_TEST_SUITE_P(FullEight, Group, ::testing::ValuesIn(group_params({0, 1}).of_eight),
                         group_name);
INSTANTIATE_TEST_SUITE_P(Tiny, GroupBits, ::testing::ValuesIn(group_params({1, 2}).daily),
                         group_name);
INSTANTIATE_TEST_SUITE_P(Full, GroupBits, ::testing::ValuesIn(group_params({1, 2}).others),
                         group_name);
INSTANTIATE_TEST_SUITE_P(FullEight, GroupBits, ::testing::ValuesIn(group_params({1, 2}).of_eight),
                         group_name);
INSTANTIATE_TEST_SUITE_P(Tiny, GroupDrafts, ::testing::ValuesIn(group_params({1}).daily),
                         group_name);
INSTANTIATE_TEST_SUITE_P(Full, GroupDrafts, ::testing::ValuesIn(group_params({1}).others),
                         group_name);
INSTANTIATE_TEST_SUITE_P(FullEight, GroupDrafts, ::testing::ValuesIn(group_params({1}).of_eight),
                         group_name);

// Ranks that have whole experts: of those that a token has chosen each adds its own.
class GroupExperts : public Group {
 protected:
  static std::unique_ptr<step::Executor> by_expert(const step::Capacity& capacity,
                                                   GroupAsk ask = {}) {
    ask.by_expert = true;
    return group(capacity, std::move(ask));
  }
};

TEST_P(GroupExperts, AsOneDeviceAlsoUnderTaps) {
  std::vector<Ask> asks = random_asks(12, 21, 24);
  add_random_taps(asks, alone(kRoomy, {.has_taps = true})->capacity(), 22);
  std::vector<HashingOps::Hashes> hashes;
  hashes.reserve(static_cast<size_t>(num_ranks()));
  const RankWrap wrap = [&](std::unique_ptr<ops::Ops> inner) -> std::unique_ptr<ops::Ops> {
    return std::make_unique<HashingOps>(std::move(inner), hashes.emplace_back());
  };
  const auto executor = by_expert(kRoomy, {.has_taps = true, .wrap = wrap});
  const Outcome got = run(*executor, busy_settings(), spread_asks(asks));
  for (const HashingOps::Hashes& rank : hashes) EXPECT_EQ(rank, hashes[0]);
  if (std::get<0>(GetParam()) == 2) return;  // other tokens than those of one device, by rounding
  expect_nearly_same(run(*alone(kRoomy, {.has_taps = true}), plain_settings(), asks).got, got.got,
                     kNear, 2e-4);
}

INSTANTIATE_TEST_SUITE_P(Tiny, GroupExperts,
                         ::testing::Values(GroupParam{1, TinyArch::kExperts, 2},
                                           GroupParam{0, TinyArch::kSinks, 2},
                                           GroupParam{1, TinyArch::kByLayer, 4},
                                           GroupParam{2, TinyArch::kSinks, 2}),
                         group_name);
INSTANTIATE_TEST_SUITE_P(FullEight, GroupExperts,
                         ::testing::Values(GroupParam{1, TinyArch::kExperts, 8},
                                           GroupParam{2, TinyArch::kByLayer, 8}),
                         group_name);

TEST(GroupTaps, RowsAreAsWideAsOnOneDevice) {
  const auto geometry_of = [](TinyArch arch, int32_t num_ranks) {
    return tiny_group(rank_backends()[0], arch, kRoomy, {.num_ranks = num_ranks, .has_taps = true})
        ->capacity()
        .geometry;
  };
  for (const TinyArch arch : {TinyArch::kPreNorm, TinyArch::kGated}) {
    const tap::Geometry alone = geometry_of(arch, 1);
    for (const int32_t ranks : {2, 4}) {
      const tap::Geometry geometry = geometry_of(arch, ranks);
      EXPECT_EQ(geometry.sites, alone.sites);
      EXPECT_EQ(geometry.mlp_width, alone.mlp_width);
      EXPECT_EQ(geometry.heads, alone.heads);
    }
  }
}

// Also when nothing else is in flight, and when it is rank 0 whose results are collected.
TEST(GroupFailure, ARankThatFailsOrStandsStillIsATypedErrorInTime) {
  using Kind = Misdeed::Kind;
  for (const Kind kind : {Kind::kStands, Kind::kThrows, Kind::kSamplesLate}) {
    for (const auto& [rank, num_ranks] : {std::pair{0, 4}, {1, 4}, {2, 4}, {7, 8}}) {
      Misdeed misdeed;
      misdeed.kind = kind;
      misdeed.rank = rank;
      misdeed.product = 8;
      const int32_t patience_ms = kind == Kind::kThrows ? 60'000
                                  : rank == 0           ? cpu::HostComm::kPatienceMs
                                                        : 300;
      const auto executor =
          tiny_group(rank_backends()[1], TinyArch::kHeadNorm, kRoomy,
                     {.num_ranks = num_ranks,
                      .num_heads = heads_for(num_ranks),
                      .patience_ms = patience_ms,
                      .wrap = [&](std::unique_ptr<ops::Ops> inner) -> std::unique_ptr<ops::Ops> {
                        return std::make_unique<MisbehavingOps>(std::move(inner), misdeed);
                      }});
      const step::StepPlan plan = one_prompt();
      const auto begin = std::chrono::steady_clock::now();
      const auto ticket = executor->launch(in_groups(plan, *executor));
      ASSERT_TRUE(ticket);
      const auto result = executor->collect(*ticket);
      const auto took = std::chrono::steady_clock::now() - begin;
      misdeed.released = true;
      ASSERT_FALSE(result) << "rank " << rank;
      EXPECT_EQ(result.error().code,
                kind == Kind::kThrows ? ErrorCode::kOverloaded : ErrorCode::kInternal)
          << result.error().to_string();
      // Half of what waiting for an error that was thrown would take; one that stands still is
      // waited for as long as the patience says.
      static_assert(cpu::HostComm::kPatienceMs < 3000, "the error comes within three seconds");
      EXPECT_LT(took, std::chrono::seconds(30)) << "rank " << rank;
      EXPECT_FALSE(executor->launch(in_groups(plan, *executor))) << "it is dead from then on";
    }
  }
}

// What the head says of rows, read through that of one device or through the ranks' parts of it.
void expect_same_lens(const exec::LoadedModel& alone, const exec::LoadedModel& group) {
  ASSERT_TRUE(alone.lens != nullptr && group.lens != nullptr);
  constexpr int32_t kTop = 5;
  std::mt19937 engine(3);
  std::normal_distribution<float> normal;
  std::vector<float> rows(static_cast<size_t>(alone.spec.hidden) *
                          20);  // more than are read at once
  for (float& value : rows) value = normal(engine);
  std::vector<tap::LensToken> expected;
  std::vector<tap::LensToken> got;
  ASSERT_TRUE(alone.lens->read(rows, kTop, expected) && group.lens->read(rows, kTop, got));
  ASSERT_EQ(expected.size(), size_t{20} * kTop);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].token, expected[i].token) << i;
    EXPECT_NEAR(got[i].logprob, expected[i].logprob, kNear) << i;
  }
}

// Every golden checkpoint, cut as its format says, gives the tokens of Hugging Face transformers:
// the test of one device (golden_serving_test.cpp) compares with them; this one with that device.
class GoldenGroup : public ::testing::TestWithParam<std::tuple<std::string, int32_t>> {
 protected:
  static exec::LoadedModel load(int32_t num_ranks, bool by_expert = false) {
    const auto checkpoint = value_of(weights::Checkpoint::open_folder(
        std::string(RUDDER_SOURCE_DIR) + "/tests/golden/" + std::get<0>(GetParam())));
    exec::ExecSettings settings;
    settings.parallel.by_expert = by_expert;
    settings.max_model_len = 96;
    settings.kv_cache_memory_bytes = 4 << 20;
    settings.enable_steering = true;
    settings.capture_memory_mb = 8;
    exec::Ranks ranks;
    for (const CommPtr& comm : cpu::HostComm::make_group(num_ranks)) {
      ranks.push_back(rank_backends()[1].make(num_ranks == 1 ? nullptr : comm));
    }
    return value_of(exec::load_model(*checkpoint, std::move(ranks), settings,
                                     {.max_num_seqs = 8, .max_num_batched_tokens = 50}, {}));
  }
};

// What ranks divide a mixer by; of a state space whose norm is over all channels one rank has all.
// Of no mixer they have nothing each.
int32_t heads_of(const model::LayerSpec& layer) {
  if (const auto* const delta = std::get_if<model::GatedDelta>(&layer.mixer)) {
    return delta->key_heads;
  }
  if (const auto* const conv = std::get_if<model::ShortConv>(&layer.mixer)) return conv->width;
  if (const model::StateSpace* const space = space_of(layer)) {
    return space->norm_runs == 0 ? space->heads : std::gcd(space->heads, space->norm_runs);
  }
  if (const model::LatentAttention* const latent = latent_of(layer)) return latent->shape.num_heads;
  const model::Attention* const attention = attention_of(layer);
  return attention == nullptr ? 0 : attention->num_heads;
}

TEST_P(GoldenGroup, AsOneDevice) {
  const int32_t num_ranks = std::get<1>(GetParam());
  const exec::LoadedModel alone = load(1);
  const auto indivisible = std::ranges::find_if(
      alone.spec.layers,
      [&](const model::LayerSpec& layer) { return heads_of(layer) % num_ranks != 0; });
  if (indivisible != alone.spec.layers.end()) {
    const std::string which = fmt::format("of layer {}", indivisible - alone.spec.layers.begin());
    try {
      load(num_ranks);
      FAIL() << "the heads " << which << " were divided among " << num_ranks << " ranks";
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find(which), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("cannot be divided"), std::string::npos)
          << error.what();
    }
    return;
  }
  const exec::LoadedModel group = load(num_ranks);
  EXPECT_EQ(group.memory.num_ranks, num_ranks);
  EXPECT_LT(group.memory.weights.bytes, alone.memory.weights.bytes);
  std::vector<Ask> asks = spread_asks(random_asks(6, 41, 24));
  for (Ask& ask : asks) {
    if (ask.prompt.size() > 60) ask.prompt.resize(60);
    ask.max_len = std::min(ask.max_len, static_cast<int32_t>(ask.prompt.size()) + 24);
  }
  sched::SchedSettings settings;
  settings.max_num_seqs = 8;
  settings.max_num_batched_tokens = 50;
  expect_nearly_same(run(*alone.executor, settings, asks).got,
                     run(*group.executor, settings, asks).got, kNear);
  expect_same_lens(alone, group);
}

// The experts of each format, those of one tensor and of many.
TEST_P(GoldenGroup, WholeExpertsAsOneDevice) {
  const int32_t num_ranks = std::get<1>(GetParam());
  const exec::LoadedModel alone = load(1);
  const auto has_experts = [](const model::LayerSpec& layer) {
    return experts_of(layer) != nullptr;
  };
  if (std::ranges::none_of(alone.spec.layers, has_experts)) {
    EXPECT_THROW(load(num_ranks, true), std::runtime_error);
    return;
  }
  for (const model::LayerSpec& layer : alone.spec.layers) {
    const model::Experts* const experts = experts_of(layer);
    if (heads_of(layer) % num_ranks != 0) return;
    if (experts == nullptr || experts->count % num_ranks == 0) continue;
    EXPECT_THROW(load(num_ranks, true), std::runtime_error);
    return;
  }
  const exec::LoadedModel group = load(num_ranks, true);
  EXPECT_LT(group.memory.weights.bytes, alone.memory.weights.bytes);
  sched::SchedSettings settings;
  settings.max_num_seqs = 8;
  settings.max_num_batched_tokens = 50;
  std::vector<Ask> asks = spread_asks(random_asks(6, 41, 24));
  for (Ask& ask : asks) {
    if (ask.prompt.size() > 60) ask.prompt.resize(60);
    ask.max_len = std::min(ask.max_len, static_cast<int32_t>(ask.prompt.size()) + 24);
  }
  expect_nearly_same(run(*alone.executor, settings, asks).got,
                     run(*group.executor, settings, asks).got, kNear);
}

std::vector<std::string> golden_group_names() {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(RUDDER_SOURCE_DIR) + "/tests/golden")) {
    if (entry.is_directory()) names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}
std::string golden_name(const ::testing::TestParamInfo<std::tuple<std::string, int32_t>>& test) {
  std::string name = std::get<0>(test.param) + "_" + std::to_string(std::get<1>(test.param));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Checkpoints, GoldenGroup,
                         ::testing::Combine(::testing::ValuesIn(golden_group_names()),
                                            ::testing::Values(2, 4)),
                         golden_name);
INSTANTIATE_TEST_SUITE_P(FullEight, GoldenGroup,
                         ::testing::Combine(::testing::ValuesIn(golden_group_names()),
                                            ::testing::Values(8)),
                         golden_name);

}  // namespace
}  // namespace rudder::metamorphic
