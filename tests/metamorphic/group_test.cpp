// Ranks of a group against one device alone: the same tokens, and logprobs and captured rows as
// near as sums in another order are; every rank with the same bits after every op; batch-invariant
// as one device is; and a typed error in time when a rank fails or stands still.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <mutex>
#include <random>
#include <thread>

#include "metamorphic/harness.h"
#include "metamorphic/misdeed.h"
#include "metamorphic/tap_asks.h"
#include "rudder/cpu/fast_ops.h"
#include "rudder/cpu/host_comm.h"
#include "rudder/cpu/reference_ops.h"
#include "rudder/exec/make_executor.h"
#include "rudder/model/shard.h"
#include "rudder/model/tap_geometry.h"
#include "rudder/step/group_executor.h"
#include "rudder/testing/forwarding_ops.h"
#include "rudder/testing/random_proposer.h"

namespace rudder::metamorphic {
namespace {

using testing::TinyArch;
using CommPtr = std::shared_ptr<cpu::HostComm>;

constexpr double kNear = 1e-5;  // of logprobs, which are some 1 to 10

struct RankBackend {
  std::string name;
  std::function<std::unique_ptr<ops::Ops>(CommPtr)> make;
};

const std::vector<RankBackend>& rank_backends() {
  static const std::vector<RankBackend> all = {
      {"reference", [](CommPtr comm) { return cpu::make_reference_rank(std::move(comm)); }},
      {"fast_f32",
       [](CommPtr comm) {
         return value_of(cpu::make_cpu_ops(
             {.dtype = tensor::DType::kF32, .num_threads = 1, .isa = {}, .comm = std::move(comm)}));
       }},
      {"fast_bf16", [](CommPtr comm) {
         return value_of(cpu::make_cpu_ops({.dtype = tensor::DType::kBF16,
                                            .num_threads = 2,
                                            .isa = {},
                                            .comm = std::move(comm)}));
       }}};
  return all;
}

// Wraps the backend of each rank.
using Wrap = std::function<std::unique_ptr<ops::Ops>(std::unique_ptr<ops::Ops>)>;

struct GroupAsk {
  int32_t num_ranks = 1;
  bool has_taps = false;
  bool guesses = false;  // by the model itself
  int32_t patience_ms = cpu::HostComm::kPatienceMs;
  Wrap wrap = {};
};

std::unique_ptr<step::Executor> tiny_group(const RankBackend& backend, TinyArch arch,
                                           step::Capacity capacity, const GroupAsk& ask) {
  const model::ModelSpec whole = testing::tiny_spec(arch);
  std::vector<std::unique_ptr<step::Executor>> executors;
  for (const CommPtr& comm : cpu::HostComm::make_group(ask.num_ranks, ask.patience_ms)) {
    exec::DeviceExecutor::Model model;
    model.ops = backend.make(ask.num_ranks == 1 ? nullptr : comm);
    if (ask.wrap) model.ops = ask.wrap(std::move(model.ops));
    model.spec = value_of(model::shard_spec(whole, comm->rank()));
    model.weights = value_of(testing::random_weights(whole, *model.ops, 7));
    if (ask.guesses) {
      model.draft = {model.spec, value_of(testing::random_weights(whole, *model.ops, 7))};
    }
    step::Capacity mine = capacity;
    mine.guesses = ask.guesses;
    if (ask.has_taps) {
      mine = with_encodes(mine, arch);
      mine.taps.patterns = false;  // refused on ranks
      mine.geometry = model::tap_geometry(model.spec, tensor::DType::kF32, comm->rank());
    }
    executors.push_back(value_of(start_executor(std::move(model), mine)));
  }
  return step::GroupExecutor::of(std::move(executors));
}

void expect_near(const std::vector<float>& expected, const std::vector<float>& got, double most,
                 const std::string& what) {
  ASSERT_EQ(expected.size(), got.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(expected[i], got[i], most) << what;
}

// `error` is what a log-probability may be off by, `row_error` an element of a captured row.
void expect_nearly_same(const std::vector<Got>& expected, const std::vector<Got>& got, double error,
                        double row_error = 0) {
  ASSERT_EQ(expected.size(), got.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const std::string what = "sequence " + std::to_string(i);
    EXPECT_FALSE(got[i].tokens.empty()) << what;
    ASSERT_EQ(expected[i].tokens, got[i].tokens) << what;
    EXPECT_EQ(expected[i].end, got[i].end) << what;
    EXPECT_EQ(expected[i].scored, got[i].scored) << what;
    expect_near(expected[i].logprobs, got[i].logprobs, error, what);
    expect_near(expected[i].scores, got[i].scores, error, what);
    ASSERT_EQ(expected[i].captured.size(), got[i].captured.size()) << what;
    for (const auto& [position, row] : expected[i].captured) {
      expect_near(row, got[i].captured.at(position), row_error, what);
    }
  }
}

sched::SchedSettings busy_settings() {
  sched::SchedSettings settings = plain_settings();
  settings.max_num_batched_tokens = 60;
  settings.max_in_flight = 3;
  settings.multi_step = 4;
  settings.enable_prefix_caching = true;
  return settings;
}

std::vector<Ask> spread_asks(std::vector<Ask> asks) {
  for (size_t i = 0; i < asks.size(); ++i) asks[i].arrival = static_cast<int32_t>(i * 7 % 23);
  return asks;
}

using Param = std::tuple<size_t, TinyArch, int32_t>;  // index into rank_backends(), ranks

class Group : public ::testing::TestWithParam<Param> {
 protected:
  static const RankBackend& backend() { return rank_backends()[std::get<0>(GetParam())]; }
  static TinyArch arch() { return std::get<1>(GetParam()); }
  static int32_t num_ranks() { return std::get<2>(GetParam()); }
  // The weights of a gate are not normalised: errors grow with the number of keys that it adds.
  static double near_enough() { return arch() == TinyArch::kGated ? 5e-5 : kNear; }

  static std::unique_ptr<step::Executor> group(const step::Capacity& capacity, GroupAsk ask = {}) {
    ask.num_ranks = num_ranks();
    return tiny_group(backend(), arch(), capacity, ask);
  }
  static std::unique_ptr<step::Executor> alone(const step::Capacity& capacity,
                                               const GroupAsk& ask = {}) {
    return tiny_group(backend(), arch(), capacity, ask);
  }
};

TEST_P(Group, AsOneDevice) {
  const std::vector<Ask> asks = random_masked_asks(12, 11, 30);
  expect_nearly_same(run(*alone(kRoomy), plain_settings(), asks).got,
                     run(*group(kRoomy), plain_settings(), asks).got, near_enough());
}

// The executor compares what ranks sampled; this compares all bits of the residual stream, after
// each op that changes it.
class HashingOps final : public testing::PassingOps {
 public:
  using Hashes = std::vector<uint64_t>;

  HashingOps(std::unique_ptr<ops::Ops> inner, Hashes& hashes)
      : PassingOps(std::move(inner)), hashes_(hashes) {}

  void residual_norm(const ops::ResidualNormArgs& args) override {
    PassingOps::residual_norm(args);
    add(args.x);
  }
  void sample(const ops::SampleArgs& args) override {
    add(args.logits);
    PassingOps::sample(args);
  }

 private:
  void add(const ops::View& view) {
    uint64_t hash = 1469598103934665603u;
    for (size_t i = 0; i < view.bytes(); ++i) {
      hash = (hash ^ static_cast<const uint8_t*>(view.data)[i]) * 1099511628211u;
    }
    hashes_.push_back(hash);
  }

  Hashes& hashes_;
};

class GroupBits : public Group {};

TEST_P(GroupBits, RanksHaveTheSameBitsInEveryStepAndBatchesDoNotMatter) {
  const std::vector<Ask> asks = spread_asks(random_masked_asks(12, 6, 40));
  std::vector<HashingOps::Hashes> hashes;
  hashes.reserve(static_cast<size_t>(num_ranks()));
  const Wrap wrap = [&](std::unique_ptr<ops::Ops> inner) -> std::unique_ptr<ops::Ops> {
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
  const Wrap wrap = [&](std::unique_ptr<ops::Ops> inner) -> std::unique_ptr<ops::Ops> {
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

class GroupDrafts : public Group {};

TEST_P(GroupDrafts, VerifiesDraftsAsOneDevice) {
  const std::vector<Ask> asks = random_asks(8, 31, 40);
  step::Capacity capacity = kRoomy;
  capacity.max_draft = 4;
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

std::string group_name(const ::testing::TestParamInfo<Param>& test) {
  return rank_backends()[std::get<0>(test.param)].name + "_" +
         std::string(testing::tiny_arch_name(std::get<1>(test.param))) + "_" +
         std::to_string(std::get<2>(test.param));
}
struct GroupParams {
  std::vector<Param> daily, others;  // `daily`: every model once, backends and ranks in turn
};
GroupParams group_params(const std::vector<size_t>& backends) {
  GroupParams params;
  const auto add = [](std::vector<Param>& to, const Pair& pair, int32_t ranks) {
    to.emplace_back(std::get<0>(pair), std::get<1>(pair), ranks);
  };
  for (const Pair& pair : daily_pairs(backends)) {
    const int32_t ranks = params.daily.size() / backends.size() % 2 == 0 ? 2 : 4;
    add(params.daily, pair, ranks);
    add(params.others, pair, ranks == 2 ? 4 : 2);
  }
  for (const Pair& pair : other_pairs(backends)) {
    for (const int32_t ranks : {2, 4}) add(params.others, pair, ranks);
  }
  return params;
}
// Sums of bf16 products round to other tokens than those of one device; bits are compared all the
// same.
INSTANTIATE_TEST_SUITE_P(Tiny, Group, ::testing::ValuesIn(group_params({0, 1}).daily), group_name);
INSTANTIATE_TEST_SUITE_P(Full, Group, ::testing::ValuesIn(group_params({0, 1}).others), group_name);
INSTANTIATE_TEST_SUITE_P(Tiny, GroupBits, ::testing::ValuesIn(group_params({1, 2}).daily),
                         group_name);
INSTANTIATE_TEST_SUITE_P(Full, GroupBits, ::testing::ValuesIn(group_params({1, 2}).others),
                         group_name);
INSTANTIATE_TEST_SUITE_P(Tiny, GroupDrafts, ::testing::ValuesIn(group_params({1}).daily),
                         group_name);
INSTANTIATE_TEST_SUITE_P(Full, GroupDrafts, ::testing::ValuesIn(group_params({1}).others),
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

TEST(GroupTaps, RanksOfSeparateMemoryRefuseRowsThatAreDividedByName) {
  const model::ModelSpec part =
      value_of(model::shard_spec(testing::tiny_spec(TinyArch::kPreNorm), {1, 2}));
  const tap::Geometry geometry =
      model::tap_geometry(part, tensor::DType::kBF16, {1, 2}, {.shares = false});
  for (const tap::Site site : {tap::Site::kAttnZ, tap::Site::kMlpAct}) {
    const Result<void> known = geometry.check({1, site});
    ASSERT_FALSE(known);
    EXPECT_NE(known.error().message.find(std::string(tap::site_name(site)) +
                                         " can be neither read nor steered with "
                                         "--tensor-parallel-size above 1"),
              std::string::npos)
        << known.error().message;
  }
  EXPECT_TRUE(geometry.check({1, tap::Site::kMlpOut}));
}

// A model that guesses for itself is right about every greedy token, on ranks as on one device.
TEST(GroupGuesses, OwnGuessesAreAllRight) {
  for (const TinyArch arch : {TinyArch::kPreNorm, TinyArch::kHeadNorm}) {
    std::vector<Ask> asks = random_asks(10, 41, 40);
    for (Ask& ask : asks) {
      ask.sampling = {};
      ask.sampling.temperature = 0;
    }
    const RankBackend& backend = rank_backends()[1];
    const std::vector<Got> plain =
        run(*tiny_group(backend, arch, kRoomy, {}), plain_settings(), asks).got;
    for (const int32_t ranks : {2, 4}) {
      step::Capacity capacity = kRoomy;
      capacity.max_draft = 4;
      const auto executor =
          tiny_group(backend, arch, capacity, {.num_ranks = ranks, .guesses = true});
      sched::SchedSettings settings = plain_settings();
      settings.max_in_flight = 2;
      const Outcome outcome = run(*executor, settings, spread_asks(asks));
      expect_nearly_same(plain, outcome.got, kNear);
      EXPECT_GT(outcome.stats.accepted_tokens, 100u);
      EXPECT_EQ(outcome.stats.draft_tokens, outcome.stats.accepted_tokens);
    }
  }
}

// Also when nothing else is in flight, and when it is rank 0 whose results are collected.
TEST(GroupFailure, ARankThatFailsOrStandsStillIsATypedErrorInTime) {
  using Kind = Misdeed::Kind;
  for (const Kind kind : {Kind::kStands, Kind::kThrows, Kind::kSamplesLate}) {
    for (const int32_t rank : {0, 1, 2}) {
      Misdeed misdeed;
      misdeed.kind = kind;
      misdeed.rank = rank;
      misdeed.product = 8;
      const int32_t patience_ms = kind == Kind::kThrows ? 60'000
                                  : rank == 0           ? cpu::HostComm::kPatienceMs
                                                        : 300;
      const auto executor =
          tiny_group(rank_backends()[1], TinyArch::kHeadNorm, kRoomy,
                     {.num_ranks = 4,
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
      ASSERT_FALSE(result) << "rank " << rank;
      EXPECT_EQ(result.error().code,
                kind == Kind::kThrows ? ErrorCode::kOverloaded : ErrorCode::kInternal)
          << result.error().to_string();
      // Half of what waiting for an error that was thrown would take; one that stands still is
      // waited for as long as the patience says.
      static_assert(cpu::HostComm::kPatienceMs < 3000, "the error comes within three seconds");
      EXPECT_LT(took, std::chrono::seconds(30)) << "rank " << rank;
      EXPECT_FALSE(executor->launch(in_groups(plan, *executor))) << "it is dead from then on";
      misdeed.released = true;
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
  std::vector<steer::capture::LensToken> expected;
  std::vector<steer::capture::LensToken> got;
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
  static exec::LoadedModel load(int32_t num_ranks) {
    const auto checkpoint = value_of(weights::Checkpoint::open_folder(
        std::string(RUDDER_SOURCE_DIR) + "/tests/golden/" + std::get<0>(GetParam())));
    exec::ExecSettings settings;
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

TEST_P(GoldenGroup, AsOneDevice) {
  const int32_t num_ranks = std::get<1>(GetParam());
  const exec::LoadedModel alone = load(1);
  const int32_t num_heads = attention_of(alone.spec.layers[0])->num_heads;
  if (num_heads % num_ranks != 0) {
    try {
      load(num_ranks);
      FAIL() << num_heads << " heads were divided among " << num_ranks << " ranks";
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find("heads of layer 0 cannot be divided"),
                std::string::npos)
          << error.what();
    }
    return;
  }
  const exec::LoadedModel group = load(num_ranks);
  EXPECT_EQ(group.memory.num_ranks, num_ranks);
  EXPECT_LT(group.memory.weight_bytes, alone.memory.weight_bytes);
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

std::vector<std::string> golden_group_names() {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(RUDDER_SOURCE_DIR) + "/tests/golden")) {
    if (entry.is_directory()) names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}
INSTANTIATE_TEST_SUITE_P(Checkpoints, GoldenGroup,
                         ::testing::Combine(::testing::ValuesIn(golden_group_names()),
                                            ::testing::Values(2, 4)),
                         [](const auto& test) {
                           std::string name = std::get<0>(test.param) + "_" +
                                              std::to_string(std::get<1>(test.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace rudder::metamorphic
