// Ranks of a group on GPUs, through the real scheduler and executor: nearly the tokens of one GPU
// (sums of bf16 in parts round otherwise), the same bits on every rank, as alone where they are
// batch-invariant, from graphs as op by op; and a typed error in time when a rank fails or stands
// still. A group of more GPUs than there are is skipped by name.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <random>

#include "metamorphic/groups.h"
#include "metamorphic/guess_notes.h"
#include "metamorphic/misdeed.h"
#include "metamorphic/served_parts.h"
#include "metamorphic/tap_asks.h"
#include "rudder/cuda/cuda_ops.h"
#include "rudder/exec/head_lens.h"
#include "rudder/exec/pass_proposer.h"
#include "rudder/model/shard.h"
#include "rudder/testing/random_proposer.h"
#include "rudder/wrap/group_executor.h"

namespace rudder::metamorphic {
namespace {

using testing::TinyArch;
using Devices = std::vector<int32_t>;

struct GpuGroupAsk {
  Devices devices = {0};  // one: the device is alone
  tensor::DType dtype = tensor::DType::kBF16;
  bool has_taps = false;
  Guesser guesser = Guesser::kNone;
  bool batch_invariant = false;
  bool enforce_eager = false;
  int32_t patience_ms = 5000;
  RankWrap wrap = {};
};

int32_t num_visible() {
  cuda::load_kernels_early();
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

model::ModelSpec gpu_spec(TinyArch arch) {
  model::ModelSpec spec = testing::tiny_spec(arch);
  use_served_parts(spec);
  for (model::LayerSpec& layer : spec.layers) {
    // fp8 products need multiples of 16, of a rank too.
    if (model::GatedMlp* const mlp = model::gated_mlp_of(layer)) mlp->width = 128;
    if (model::Experts* const experts = model::experts_of(layer)) {
      experts->width = experts->shared_width = 128;
    }
  }
  return spec;
}

void give_head_kernels(model::DraftHeadSpec& head) {
  use_served_parts(head.layer);
  if (!head.is_product()) head.draft_vocab = 64;
}

std::unique_ptr<step::Executor> gpu_group(TinyArch arch, const step::Capacity& capacity,
                                          const GpuGroupAsk& ask) {
  cuda::CudaOpsSettings settings;
  settings.linear_dtype = ask.dtype;
  settings.kv = {ask.dtype};
  settings.batch_invariant = ask.batch_invariant;
  settings.tune = ask.batch_invariant;  // measured anew, kernels might be others
  std::vector<std::unique_ptr<ops::Ops>> ranks;
  if (ask.devices.size() == 1) {
    ranks.push_back(value_of(cuda::make_cuda_ops(settings)));
  } else {
    ranks = value_of(cuda::make_cuda_ranks(settings, ask.devices, ask.patience_ms));
  }
  const model::ModelSpec whole = gpu_spec(arch);
  std::vector<std::unique_ptr<step::Executor>> executors;
  for (std::unique_ptr<ops::Ops>& ops : ranks) {
    const ops::Rank rank = ops::rank_of(*ops);
    exec::DeviceExecutor::Model model;
    model.ops = ask.wrap ? ask.wrap(std::move(ops)) : std::move(ops);
    model.spec = value_of(model::shard_spec(whole, rank));
    model.weights = value_of(testing::random_weights(whole, *model.ops, 7));
    add_guesser(model, whole, ask.guesser, give_head_kernels);
    step::Capacity mine = capacity;
    add_guesser(mine, ask.guesser);
    if (ask.has_taps) {
      mine = with_encodes(mine, arch);
      mine.geometry = tapped_geometry(model.spec, tensor::DType::kBF16, rank);
    }
    executors.push_back(
        value_of(start_executor(std::move(model), mine, {.enforce_eager = ask.enforce_eager})));
  }
  return wrap::GroupExecutor::of(std::move(executors));
}

using GpuParam = std::tuple<Devices, TinyArch>;

class GpuGroup : public ::testing::TestWithParam<GpuParam> {
 protected:
  void SetUp() override {
    const int32_t wanted = *std::max_element(devices().begin(), devices().end()) + 1;
    if (num_visible() < wanted) {
      GTEST_SKIP() << "needs " << wanted << " GPUs, " << num_visible() << " visible";
    }
  }
  static const Devices& devices() { return std::get<0>(GetParam()); }
  static TinyArch arch() { return std::get<1>(GetParam()); }
  static std::unique_ptr<step::Executor> group(const step::Capacity& capacity,
                                               GpuGroupAsk ask = {}) {
    ask.devices = devices();
    return gpu_group(arch(), capacity, ask);
  }
  static std::unique_ptr<step::Executor> alone(const step::Capacity& capacity,
                                               const GpuGroupAsk& ask = {}) {
    return gpu_group(arch(), capacity, ask);
  }
};

// Tokens up to the first that rounding made another, of all; and the largest difference of their
// log-probabilities.
struct Nearness {
  int64_t common = 0;
  int64_t all = 0;
  double logprob_error = 0;
};
Nearness nearness(const std::vector<Got>& expected, const std::vector<Got>& got) {
  Nearness near;
  for (size_t i = 0; i < got.size(); ++i) {
    const auto& a = expected[i];
    const auto& b = got[i];
    const auto end =
        std::mismatch(a.tokens.begin(), a.tokens.end(), b.tokens.begin(), b.tokens.end()).first;
    const auto common = static_cast<size_t>(end - a.tokens.begin());
    near.common += static_cast<int64_t>(common);
    near.all += std::ssize(a.tokens);
    const bool has_each =
        a.logprobs.size() == a.tokens.size() && b.logprobs.size() == b.tokens.size();
    for (size_t t = 0; has_each && t < common; ++t) {
      near.logprob_error =
          std::max(near.logprob_error, std::abs(double{a.logprobs[t]} - double{b.logprobs[t]}));
    }
  }
  return near;
}

TEST_P(GpuGroup, NearlyAsOneDevice) {
  const std::vector<Ask> asks = random_masked_asks(16, 11, 30);
  const Nearness near = nearness(run(*alone(kRoomy), plain_settings(), asks).got,
                                 run(*group(kRoomy), plain_settings(), asks).got);
  RecordProperty("common", fmt::format("{} of {}", near.common, near.all));
  RecordProperty("logprob_error", fmt::format("{:.4f}", near.logprob_error));
  // A sequence goes another way at the first token that rounding changes: the more parts a sum has,
  // the sooner.
  EXPECT_GT(near.common, near.all / std::ssize(devices()))
      << "logprobs differ by up to " << near.logprob_error;
  EXPECT_LT(near.logprob_error, 0.2);
}

// All bits of the residual stream, after each op that changes it, and of the logits.
class DeviceHashingOps final : public testing::PassingOps {
 public:
  using Hashes = std::vector<uint64_t>;

  DeviceHashingOps(std::unique_ptr<ops::Ops> inner, Hashes& hashes)
      : PassingOps(std::move(inner)),
        hashes_(hashes),
        staging_(value_of(inner_->allocate_staging(int64_t{1} << 20))) {}

  void residual_norm(const ops::ResidualNormArgs& args) override {
    PassingOps::residual_norm(args);
    // What nothing reads and no rank adds to is a sum of own shares (Parallel), not the residual.
    if (!args.out.empty() || args.sums_ranks) add(args.x);
  }
  void sample(const ops::SampleArgs& args) override {
    add(args.logits);
    PassingOps::sample(args);
  }

 private:
  void add(const ops::View& view) {
    const ops::View host = staging_.rows(0, static_cast<int64_t>(view.bytes()));
    inner_->copy_out(host, view);
    const std::unique_ptr<ops::Event> done = inner_->make_event();
    inner_->record(*done);
    if (!done->wait()) return;  // the executor tells it
    uint64_t hash = 1469598103934665603u;
    for (size_t i = 0; i < host.bytes(); ++i) {
      hash = (hash ^ static_cast<const uint8_t*>(host.data)[i]) * 1099511628211u;
    }
    hashes_.push_back(hash);
  }

  Hashes& hashes_;
  const ops::View staging_;
};

TEST_P(GpuGroup, RanksHaveTheSameBits) {
  const std::vector<Ask> asks = spread_asks(random_masked_asks(8, 6, 24));
  std::vector<DeviceHashingOps::Hashes> hashes;
  hashes.reserve(devices().size());
  const RankWrap wrap = [&](std::unique_ptr<ops::Ops> inner) -> std::unique_ptr<ops::Ops> {
    return std::make_unique<DeviceHashingOps>(std::move(inner), hashes.emplace_back());
  };
  {
    const auto executor = group(kRoomy, {.enforce_eager = true, .wrap = wrap});
    run(*executor, busy_settings(), asks);
  }
  ASSERT_EQ(hashes.size(), devices().size());
  EXPECT_GT(hashes[0].size(), 100u);
  for (const DeviceHashingOps::Hashes& rank : hashes) EXPECT_EQ(rank, hashes[0]);
}

TEST_P(GpuGroup, BatchInvariantRanksAreAsAlone) {
  for (const tensor::DType dtype : {tensor::DType::kBF16, tensor::DType::kF8E4M3}) {
    const GpuGroupAsk ask = {.dtype = dtype, .batch_invariant = true};
    const std::vector<Ask> asks = spread_asks(random_masked_asks(12, 6, 40));
    step::Capacity tight = kRoomy;
    tight.num_blocks = 24;
    const Outcome busy = run(*group(tight, ask), busy_settings(), asks);
    EXPECT_GT(busy.graph_steps, 0);
    EXPECT_GT(busy.constrained_steps, 0);
    EXPECT_GT(busy.scored_steps, 0);
    expect_same(run_alone(*group(kRoomy, ask), asks), busy.got,
                std::string(tensor::dtype_name(dtype)));
  }
}

// Also at attn_z and mlp_act, where each rank has a part of the row, and of dictionaries that are
// encoded whole.
TEST_P(GpuGroup, SteeredAndCapturedRowsAreAsAloneAndNearlyThoseOfOneDevice) {
  const GpuGroupAsk ask = {.has_taps = true, .batch_invariant = true};
  const auto executor = group(kRoomy, ask);
  std::vector<Ask> asks = random_asks(12, 21, 24);
  add_random_taps(asks, executor->capacity(), 22);
  sched::SchedSettings settings = plain_settings();
  settings.max_in_flight = 3;
  const Outcome got = run(*executor, settings, asks);
  EXPECT_EQ(got.lost_tokens, 0);
  EXPECT_GT(got.graph_steps, 0);
  expect_same(run_alone(*group(kRoomy, ask), asks), got.got, "as alone");
  const std::vector<Got> one = run(*alone(kRoomy, ask), settings, asks).got;
  double error = 0;
  double size = 0;
  for (size_t i = 0; i < asks.size(); ++i) {
    for (const auto& [position, row] : one[i].captured) {
      if (position >= std::ssize(asks[i].prompt)) continue;  // another token may have been sampled
      const std::vector<float>& other = got.got[i].captured.at(position);
      ASSERT_EQ(other.size(), row.size());
      for (size_t k = 0; k < row.size(); ++k) {
        error += std::abs(double{row[k]} - double{other[k]});
        size += std::abs(double{row[k]});
      }
    }
  }
  RecordProperty("row_error", fmt::format("{:.5f}", error / size));
  EXPECT_GT(size, 0);
  EXPECT_LT(error, size * 0.05);
}

TEST_P(GpuGroup, GraphsOfDraftsAreAsEager) {
  const std::vector<Ask> asks = random_asks(12, 31, 40);
  const std::vector<Got> plain = run_alone(*group(kRoomy), asks);
  const auto whole = wholes(asks, plain);
  const auto drafted = [&](bool enforce_eager) {
    step::Capacity capacity = kRoomy;
    capacity.drafts.max_draft = 4;
    testing::RandomProposer proposer(
        11, 160, [&](sched::SequenceId id) { return std::span<const int32_t>(whole[id.value]); });
    const auto executor = group(capacity, {.enforce_eager = enforce_eager});
    return run(*executor, plain_settings(), asks, &proposer);
  };
  const Outcome eager = drafted(true);
  const Outcome graphed = drafted(false);
  EXPECT_EQ(eager.graph_steps, 0);
  EXPECT_GT(graphed.graph_steps, graphed.steps / 2);
  EXPECT_GT(graphed.stats.accepted_tokens, 20u);
  expect_same(eager.got, graphed.got, "graphs");
}

// A model that guesses for itself is right about every greedy token, on ranks as on one device.
TEST_P(GpuGroup, OwnGuessesAreAllRight) {
  if (!exec::draft_kv_layout(gpu_spec(arch()), {tensor::DType::kBF16}, 16)) {
    GTEST_SKIP() << "a draft model keeps KV in one shape";
  }
  std::vector<Ask> asks = random_asks(10, 41, 40);
  for (Ask& ask : asks) {
    ask.sampling = {};
    ask.sampling.temperature = 0;
  }
  const std::vector<Got> plain = run_alone(*group(kRoomy, {.batch_invariant = true}), asks);
  step::Capacity capacity = kRoomy;
  capacity.drafts.max_draft = 4;
  const auto executor = group(capacity, {.guesser = Guesser::kItself, .batch_invariant = true});
  sched::SchedSettings settings = plain_settings();
  settings.max_in_flight = 2;
  const Outcome outcome = run(*executor, settings, spread_asks(asks));
  expect_same(plain, outcome.got, "guessed by itself");
  EXPECT_GT(outcome.stats.accepted_tokens, 50u);
  EXPECT_EQ(outcome.stats.draft_tokens, outcome.stats.accepted_tokens);
}

// Of captured, steered and constrained sequences too. Guesses do not depend on the batch, and
// graphs of the verify change none.
TEST_P(GpuGroup, HeadsOnRanksGuessAndTheTextIsThatOfPlainDecoding) {
  std::vector<Ask> asks = random_masked_asks(8, 53, 30);
  const GpuGroupAsk plainly = {.has_taps = true, .batch_invariant = true};
  {
    const auto executor = group(kRoomy, plainly);
    add_random_taps(asks, executor->capacity(), 55);
  }
  const std::vector<Got> plain = run_alone(*group(kRoomy, plainly), asks);
  step::Capacity capacity = kRoomy;
  capacity.drafts.max_draft = 5;
  for (const Guesser guesser : kGuessersOnRanks) {
    if (!takes_guesser(arch(), guesser)) continue;
    SCOPED_TRACE(guesser_name(guesser));
    std::vector<GuessNotes::Notes> notes;
    for (const bool enforce_eager : {true, false}) {
      GpuGroupAsk ask = plainly;
      ask.guesser = guesser;
      ask.enforce_eager = enforce_eager;
      const auto executor = group(capacity, ask);
      GuessNotes noting(*executor);
      sched::SchedSettings settings = plain_settings();
      settings.max_in_flight = 2;
      const Outcome outcome = run(noting, settings, spread_asks(asks));
      expect_same(plain, outcome.got, enforce_eager ? "eager" : "graphs");
      EXPECT_GT(outcome.stats.draft_tokens, least_drafts(guesser));
      notes.push_back(noting.notes);
    }
    EXPECT_EQ(notes[0], notes[1]);
  }
}

// Behind a chunk without logits no sum of a layer follows the patterns, and what another rank wrote
// must be there all the same.
TEST_P(GpuGroup, PatternsOfEveryHeadAreNearlyThoseOfOneDevice) {
  const GpuGroupAsk ask = {.has_taps = true, .batch_invariant = true};
  const auto executor = group(kRoomy, ask);
  std::vector<Ask> asks = random_asks(6, 71, 2);
  add_every_pattern(asks, executor->capacity());
  sched::SchedSettings chunked = plain_settings();
  chunked.max_num_batched_tokens = 24;
  chunked.max_in_flight = 3;
  const std::vector<Got> got = run(*executor, chunked, asks).got;
  const std::vector<Got> one = run(*alone(kRoomy, ask), chunked, asks).got;
  double largest = 0;
  double sum = 0;
  int64_t count = 0;
  for (size_t i = 0; i < asks.size(); ++i) {
    ASSERT_EQ(got[i].captured.size(), asks[i].prompt.size());
    for (const auto& [position, row] : one[i].captured) {
      const std::vector<float>& other = got[i].captured.at(position);
      ASSERT_EQ(other.size(), row.size());
      for (size_t k = 0; k < row.size(); ++k) {
        const double difference = std::abs(double{row[k]} - double{other[k]});
        ASSERT_FALSE(std::isnan(difference)) << "position " << position;
        if (row[k] == 0) continue;
        largest = std::max(largest, difference);
        sum += difference;
        ++count;
      }
    }
  }
  RecordProperty("pattern_error",
                 fmt::format("{:.5f}, largest {:.3f}", sum / static_cast<double>(count), largest));
  ASSERT_GT(count, 0);
  EXPECT_LT(largest, 0.2);
  EXPECT_LT(sum / static_cast<double>(count), 0.01);
}

// What the head says of rows, read through that of one device and through the ranks' parts of it.
TEST_P(GpuGroup, TheLensReadsTheHeadsOfAllRanks) {
  const model::ModelSpec whole = gpu_spec(arch());
  const auto lens_of = [&](std::vector<std::unique_ptr<ops::Ops>>& ranks) {
    exec::HeadLens::Weights weights;
    for (const std::unique_ptr<ops::Ops>& ops : ranks) {
      const model::Weights of_rank = value_of(testing::random_weights(whole, *ops, 7));
      if (weights.heads.empty()) weights.final_norm = of_rank.final_norm;
      weights.heads.push_back(of_rank.head);
    }
    return value_of(exec::HeadLens::make(ranks.front()->reader_ops()->make_reader(), whole,
                                         std::move(weights)));
  };
  std::vector<float> rows(static_cast<size_t>(whole.hidden) * 20);  // more than are read at once
  std::mt19937 engine(3);
  std::normal_distribution<float> normal;
  for (float& value : rows) value = normal(engine);
  constexpr int32_t kTop = 5;
  std::vector<tap::LensToken> expected;
  std::vector<tap::LensToken> got;
  std::vector<std::unique_ptr<ops::Ops>> one;
  one.push_back(value_of(cuda::make_cuda_ops({})));
  auto ranks = value_of(cuda::make_cuda_ranks({}, devices()));
  ASSERT_TRUE(lens_of(one)->read(rows, kTop, expected));
  ASSERT_TRUE(lens_of(ranks)->read(rows, kTop, got));
  ASSERT_EQ(expected.size(), size_t{20} * kTop);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].token, expected[i].token) << i;
    EXPECT_NEAR(got[i].logprob, expected[i].logprob, 1e-3) << i;
  }
}

class GpuGroupFailure : public GpuGroup {};

TEST_P(GpuGroupFailure, ARankThatFailsOrStandsStillIsATypedErrorInTime) {
  using Kind = Misdeed::Kind;
  for (const Kind kind : {Kind::kStands, Kind::kThrows, Kind::kSamplesLate}) {
    for (const int32_t rank : {0, 1}) {
      Misdeed misdeed;
      misdeed.kind = kind;
      misdeed.rank = rank;
      misdeed.product = 8;
      const auto executor =
          group(kRoomy, {.enforce_eager = true,
                         .patience_ms = kind == Kind::kThrows ? 60'000 : 2000,
                         .wrap = [&](std::unique_ptr<ops::Ops> inner) -> std::unique_ptr<ops::Ops> {
                           return std::make_unique<MisbehavingOps>(std::move(inner), misdeed);
                         }});
      const auto begin = std::chrono::steady_clock::now();
      const auto ticket = executor->launch(in_groups(one_prompt(), *executor));
      ASSERT_TRUE(ticket);
      const auto result = executor->collect(*ticket);
      const auto took = std::chrono::steady_clock::now() - begin;
      ASSERT_FALSE(result) << "rank " << rank;
      EXPECT_EQ(result.error().code,
                kind == Kind::kThrows ? ErrorCode::kOverloaded : ErrorCode::kInternal)
          << result.error().to_string();
      EXPECT_LT(took, std::chrono::milliseconds(3000)) << "rank " << rank;
      EXPECT_FALSE(executor->launch(in_groups(one_prompt(), *executor))) << "it is dead";
      misdeed.released = true;
    }
  }
}

std::string gpu_group_name(const ::testing::TestParamInfo<GpuParam>& test) {
  return fmt::format("on_{}_{}", fmt::join(std::get<0>(test.param), "_"),
                     testing::tiny_arch_name(std::get<1>(test.param)));
}
INSTANTIATE_TEST_SUITE_P(Gpus, GpuGroup,
                         ::testing::Combine(::testing::Values(Devices{0, 1}, Devices{0, 1, 2, 3}),
                                            ::testing::ValuesIn(testing::kTinyArchs)),
                         gpu_group_name);
INSTANTIATE_TEST_SUITE_P(Gpus, GpuGroupFailure,
                         ::testing::Combine(::testing::Values(Devices{0, 1}, Devices{0, 1, 2, 3}),
                                            ::testing::Values(TinyArch::kHeadNorm)),
                         gpu_group_name);

}  // namespace
}  // namespace rudder::metamorphic
