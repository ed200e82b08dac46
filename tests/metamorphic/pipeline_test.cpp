// Stages of a pipeline against one device: the same tokens, log-probabilities, scores and captured
// rows, bit for bit, whatever runs in flight; steps that overlap; a typed error when a stage fails.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>

#include "metamorphic/harness.h"
#include "metamorphic/tap_asks.h"
#include "rudder/cpu/fast_ops.h"
#include "rudder/exec/make_executor.h"
#include "rudder/exec/pipeline_executor.h"
#include "rudder/exec/stage_link.h"
#include "rudder/model/stage.h"
#include "rudder/testing/async_ops.h"
#include "rudder/testing/forwarding_ops.h"
#include "rudder/testing/random_proposer.h"
#include "rudder/testing/tape_ops.h"

namespace rudder::metamorphic {
namespace {

using testing::TinyArch;

// Wraps the backend of each stage.
using Wrap = std::function<std::unique_ptr<ops::Ops>(int32_t stage, std::unique_ptr<ops::Ops>)>;

// By default so patient that stages which a busy machine keeps waiting do not stand still.
std::unique_ptr<step::Executor> tiny_pipeline(const Backend& backend, TinyArch arch,
                                              step::Capacity capacity, int32_t num_stages,
                                              const Wrap& wrap = {}, int32_t patience_ms = 60'000) {
  const model::ModelSpec whole = testing::tiny_spec(arch);
  const auto link =
      std::make_shared<exec::StageLink>(num_stages, capacity.max_in_flight, patience_ms);
  std::vector<std::unique_ptr<step::Executor>> executors;
  for (const model::Stage& stage : value_of(
           model::divide_layers(whole, {}, num_stages, model::all_as({ops::Codes::kF32}), {}))) {
    exec::DeviceExecutor::Model model;
    model.ops = backend.make();
    if (wrap) model.ops = wrap(stage.index, std::move(model.ops));
    model.weights = value_of(testing::random_weights(whole, *model.ops, 7, stage));
    model.spec = model::stage_spec(whole, stage);
    model.kv = exec::stage_kv_layout(
        value_of(exec::make_kv_layout(whole, {.kv = model.ops->kv_format(),
                                              .block_size = capacity.block_size,
                                              .max_seq_len = capacity.max_seq_len,
                                              .lookback = model.ops->attention_lookback()})),
        stage);
    step::Capacity mine = capacity;
    mine.kv_groups = model.kv.groups;
    mine.num_blocks *= model.kv.groups.size();
    give_states(mine, whole);
    executors.push_back(
        value_of(exec::DeviceExecutor::start(std::move(model), mine, {.link = link})));
  }
  return std::make_unique<exec::PipelineExecutor>(std::move(executors));
}

sched::SchedSettings in_flight(int32_t num_cohorts) {
  sched::SchedSettings settings = plain_settings();
  settings.max_num_batched_tokens = 60;
  settings.max_in_flight = 3;
  settings.enable_prefix_caching = true;
  settings.num_cohorts = num_cohorts;
  return settings;
}

std::vector<Ask> spread(std::vector<Ask> asks) {
  for (size_t i = 0; i < asks.size(); ++i) asks[i].arrival = static_cast<int32_t>(i * 7 % 23);
  return asks;
}

using Param = std::tuple<size_t, TinyArch, int32_t>;  // index into backends(), stages

class Pipeline : public ::testing::TestWithParam<Param> {
 protected:
  static const Backend& backend() { return backends()[std::get<0>(GetParam())]; }
  static TinyArch arch() { return std::get<1>(GetParam()); }
  static int32_t num_stages() { return std::get<2>(GetParam()); }
  static std::unique_ptr<step::Executor> pipeline(const step::Capacity& capacity) {
    return tiny_pipeline(backend(), arch(), capacity, num_stages());
  }
};

TEST_P(Pipeline, AsOneDeviceWhateverIsInFlight) {
  const std::vector<Ask> asks = spread(random_masked_asks(12, 11, 30));
  const std::vector<Got> expected = run_alone(*tiny_executor(backend(), arch(), kRoomy), asks);
  step::Capacity tight = kRoomy;
  tight.num_blocks = 18;
  const Outcome cohorts = run(*pipeline(tight), in_flight(num_stages()), asks);
  expect_same(expected, cohorts.got, "in cohorts");
  EXPECT_GT(cohorts.constrained_steps, 0);
  EXPECT_GT(cohorts.scored_steps, 0);
  sched::SchedSettings ahead = in_flight(1);
  ahead.multi_step = 4;
  expect_same(expected, run(*pipeline(tight), ahead, asks).got, "run ahead and repeated");
}

TEST_P(Pipeline, SteersAndCapturesAsOneDevice) {
  const step::Capacity capacity = with_encodes(kRoomy, arch());
  std::vector<Ask> asks = random_asks(12, 21, 24);
  add_random_taps(asks, capacity, 22);
  const auto alone = tiny_executor(backend(), arch(), capacity);
  const std::vector<Got> expected = run(*alone, plain_settings(), asks).got;
  asks = spread(std::move(asks));
  for (const int32_t cohorts : {1, num_stages()}) {
    const Outcome got = run(*pipeline(capacity), in_flight(cohorts), asks);
    EXPECT_EQ(got.lost_tokens, 0);
    expect_same(expected, got.got, std::to_string(cohorts) + " cohorts");
  }
  size_t num_captured = 0;
  for (const Got& one : expected) num_captured += one.captured.size();
  EXPECT_GT(num_captured, 0u);
}

TEST_P(Pipeline, VerifiesDraftsAsOneDevice) {
  const std::vector<Ask> asks = random_asks(8, 31, 40);
  step::Capacity capacity = kRoomy;
  capacity.drafts.max_draft = 4;
  const std::vector<Got> expected =
      run(*tiny_executor(backend(), arch(), kRoomy), plain_settings(), asks).got;
  std::vector<int32_t> whole;
  testing::RandomProposer proposer(5, 160, [&](sched::SequenceId id) {
    whole = asks[id.value].prompt;
    const auto& tokens = expected[id.value].tokens;
    whole.insert(whole.end(), tokens.begin(), tokens.end());
    return std::span<const int32_t>(whole);
  });
  for (const int32_t cohorts : {1, num_stages()}) {
    expect_same(expected, run(*pipeline(capacity), in_flight(cohorts), asks, &proposer).got,
                std::to_string(cohorts) + " cohorts");
  }
}

std::vector<Param> pipeline_params(bool daily) {
  const std::vector<Pair> pairs = daily ? daily_pairs(all_backends()) : other_pairs(all_backends());
  std::vector<Param> params;
  for (const Pair& pair : daily_pairs(all_backends())) {
    if (!runs_in_stages(std::get<1>(pair))) continue;
    const int32_t stages = params.size() % 2 == 0 ? 2 : 3;
    params.emplace_back(std::get<0>(pair), std::get<1>(pair), daily ? stages : 5 - stages);
  }
  if (daily) return params;
  for (const Pair& pair : pairs) {
    if (!runs_in_stages(std::get<1>(pair))) continue;
    for (const int32_t stages : {2, 3}) {
      params.emplace_back(std::get<0>(pair), std::get<1>(pair), stages);
    }
  }
  return params;
}
std::string pipeline_name(const ::testing::TestParamInfo<Param>& test) {
  return backends()[std::get<0>(test.param)].name + "_" +
         std::string(testing::tiny_arch_name(std::get<1>(test.param))) + "_" +
         std::to_string(std::get<2>(test.param));
}
INSTANTIATE_TEST_SUITE_P(Tiny, Pipeline, ::testing::ValuesIn(pipeline_params(true)), pipeline_name);
INSTANTIATE_TEST_SUITE_P(Full, Pipeline, ::testing::ValuesIn(pipeline_params(false)),
                         pipeline_name);

// Devices that run behind their workers, so that steps of every stage are enqueued before the stage
// in front has computed them; and graphs on such devices.
class AsyncPipeline : public ::testing::TestWithParam<int32_t> {
 protected:
  static std::vector<Backend> lagging() {
    const Backend& plain = backends().front();
    return {{"async", [&] { return testing::make_async_ops(plain.make()); }},
            {"async_tape",
             [&] { return testing::make_async_ops(testing::make_tape_ops(plain.make())); }}};
  }
};

TEST_P(AsyncPipeline, AsOneDevice) {
  const TinyArch arch = GetParam() == 2 ? TinyArch::kPreNorm : TinyArch::kSandwich;
  const std::vector<Ask> asks = spread(random_masked_asks(16, 51, 30));
  const std::vector<Got> expected =
      run_alone(*tiny_executor(backends().front(), arch, kRoomy), asks);
  step::Capacity tight = kRoomy;
  tight.num_blocks = 18;
  for (const Backend& backend : lagging()) {
    for (const int32_t cohorts : {1, GetParam()}) {
      sched::SchedSettings settings = in_flight(cohorts);
      settings.multi_step = cohorts == 1 ? 4 : 1;
      const Outcome got = run(*tiny_pipeline(backend, arch, tight, GetParam()), settings, asks);
      expect_same(expected, got.got, backend.name + ", cohorts: " + std::to_string(cohorts));
      EXPECT_EQ(got.graph_steps > 0, backend.name == "async_tape");
      EXPECT_GT(got.constrained_steps, 0);
    }
  }
}

TEST_P(AsyncPipeline, SteersCapturesAndVerifiesDraftsAsOneDevice) {
  const TinyArch arch = TinyArch::kHeadNorm;
  step::Capacity capacity = with_encodes(kRoomy, arch);
  std::vector<Ask> asks = random_asks(10, 61, 24);
  add_random_taps(asks, capacity, 62);
  const std::vector<Got> expected =
      run(*tiny_executor(backends().front(), arch, capacity), plain_settings(), asks).got;
  asks = spread(std::move(asks));
  capacity.drafts.max_draft = 4;
  std::vector<int32_t> whole;
  for (const Backend& backend : lagging()) {
    testing::RandomProposer proposer(5, 160, [&](sched::SequenceId id) {
      whole = asks[id.value].prompt;
      const auto& tokens = expected[id.value].tokens;
      whole.insert(whole.end(), tokens.begin(), tokens.end());
      return std::span<const int32_t>(whole);
    });
    const auto executor = tiny_pipeline(backend, arch, capacity, GetParam());
    const Outcome got = run(*executor, in_flight(GetParam()), asks, &proposer);
    expect_same(expected, got.got, backend.name);
    EXPECT_GT(got.stats.accepted_tokens, 10u);
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, AsyncPipeline, ::testing::Values(2, 3));

// Where two stages must be at a time.
struct Rendezvous {
  std::mutex mutex;
  std::condition_variable changed;
  int32_t first_stage_steps = 0;  // begun
  bool has_met = false;
};

// The last stage does not end its first step before the first stage has begun another.
class MeetingOps final : public testing::PassingOps {
 public:
  MeetingOps(std::unique_ptr<ops::Ops> inner, int32_t stage, Rendezvous& meeting)
      : PassingOps(std::move(inner)), stage_(stage), meeting_(meeting) {}

  void begin_attention(const ops::AttentionBatch& batch) override {
    PassingOps::begin_attention(batch);
    if (stage_ != 0) return;
    const std::lock_guard lock(meeting_.mutex);
    ++meeting_.first_stage_steps;
    meeting_.changed.notify_all();
  }
  void sample(const ops::SampleArgs& args) override {
    PassingOps::sample(args);
    std::unique_lock lock(meeting_.mutex);
    if (meeting_.has_met) return;
    meeting_.has_met = meeting_.changed.wait_for(lock, std::chrono::seconds(60),
                                                 [&] { return meeting_.first_stage_steps > 1; });
  }

 private:
  const int32_t stage_;
  Rendezvous& meeting_;
};

step::StepPlan plan_of(uint64_t id, int32_t slot, std::vector<int32_t> tokens) {
  step::StepPlan plan;
  plan.id = id;
  step::SlotEdit edit;
  edit.slot = step::SlotId(slot);
  edit.generation = 1;
  edit.sampling.temperature = 0;
  edit.blocks = {{slot}};
  edit.prompt_len = static_cast<int32_t>(tokens.size());
  edit.max_len = 10;
  plan.slots = {edit};
  step::SeqWork work;
  work.slot = edit.slot;
  work.generation = 1;
  work.q_len = edit.prompt_len;
  work.logits = step::LogitsWanted::kLast;
  plan.seqs = {work};
  plan.tokens = std::move(tokens);
  return plan;
}

class PipelineOverlap : public ::testing::TestWithParam<bool> {};  // devices that lag

TEST_P(PipelineOverlap, TheFirstStageRunsTheNextStepOfOtherSequencesMeanwhile) {
  Rendezvous meeting;
  const auto executor = tiny_pipeline(
      backends().back(), TinyArch::kPreNorm, kRoomy, 2,
      [&](int32_t stage, std::unique_ptr<ops::Ops> inner) -> std::unique_ptr<ops::Ops> {
        auto meets = std::make_unique<MeetingOps>(std::move(inner), stage, meeting);
        if (!GetParam()) return meets;
        return testing::make_async_ops(std::move(meets));
      });
  const auto first = executor->launch(in_groups(plan_of(1, 0, {1, 2, 3}), *executor));
  const auto second = executor->launch(in_groups(plan_of(2, 1, {4, 5}), *executor));
  ASSERT_TRUE(first && second);
  const auto result = executor->collect(*first);
  ASSERT_TRUE(result) << result.error().to_string();
  EXPECT_TRUE(meeting.has_met);
  EXPECT_TRUE(executor->collect(*second));
}

INSTANTIATE_TEST_SUITE_P(Devices, PipelineOverlap, ::testing::Bool());

class ThrowingOps final : public testing::PassingOps {
 public:
  explicit ThrowingOps(std::unique_ptr<ops::Ops> inner) : PassingOps(std::move(inner)) {}
  void attention(const ops::AttentionArgs& /*args*/) override { throw std::bad_alloc(); }
};

TEST(PipelineFailure, AStageThatFailsIsATypedErrorOfAll) {
  for (const int32_t bad : {0, 1, 2}) {
    const auto executor = tiny_pipeline(
        backends().back(), TinyArch::kHeadNorm, kRoomy, 3,
        [&](int32_t stage, std::unique_ptr<ops::Ops> inner) -> std::unique_ptr<ops::Ops> {
          if (stage != bad) return inner;
          return std::make_unique<ThrowingOps>(std::move(inner));
        });
    const auto first = executor->launch(in_groups(plan_of(1, 0, {1, 2, 3}), *executor));
    const auto second = executor->launch(in_groups(plan_of(2, 1, {4, 5}), *executor));
    ASSERT_TRUE(first && second);
    const auto result = executor->collect(*first);
    ASSERT_FALSE(result) << "stage " << bad;
    EXPECT_EQ(result.error().code, ErrorCode::kOverloaded) << result.error().to_string();
    EXPECT_FALSE(executor->collect(*second)) << "it is dead from then on";
    EXPECT_FALSE(executor->launch(in_groups(plan_of(3, 2, {4}), *executor)));
    EXPECT_TRUE(executor->ready({3}));
  }
}

// From its second product on; or where it samples, with all computed.
class StandingOps final : public testing::PassingOps {
 public:
  struct State {
    std::atomic<bool> stands = false;
    std::atomic<bool> released = false;
  };
  StandingOps(std::unique_ptr<ops::Ops> inner, bool samples, State& state)
      : PassingOps(std::move(inner)), samples_(samples), state_(state) {}

  void linear(const ops::LinearArgs& args) override {
    if (!samples_ && ++num_products_ >= 2) stand();
    PassingOps::linear(args);
  }
  void sample(const ops::SampleArgs& args) override {
    PassingOps::sample(args);
    if (samples_) stand();
  }

 private:
  void stand() {
    state_.stands = true;
    while (!state_.released) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }

  const bool samples_;
  State& state_;
  int64_t num_products_ = 0;
};

// Whichever stage it is, with steps of other sequences in flight and without.
TEST(PipelineFailure, AStageThatStandsStillIsATypedErrorInTime) {
  static_assert(exec::StageLink::kPatienceMs < 3000, "the error comes within three seconds");
  for (const int32_t bad : {0, 1, 2}) {
    for (const bool has_second : {false, true}) {
      StandingOps::State state;
      const auto executor = tiny_pipeline(
          backends().back(), TinyArch::kHeadNorm, kRoomy, 3,
          [&](int32_t stage, std::unique_ptr<ops::Ops> inner) -> std::unique_ptr<ops::Ops> {
            if (stage != bad) return inner;
            return std::make_unique<StandingOps>(std::move(inner), bad == 2 && has_second, state);
          },
          // Little where no other stage works once one stands: on a busy machine such a one may be
          // kept waiting as long, and would be named beside it.
          bad > 0 && !has_second ? 300 : exec::StageLink::kPatienceMs);
      const auto first = executor->launch(in_groups(plan_of(1, 0, {1, 2, 3}), *executor));
      ASSERT_TRUE(first);
      uint64_t id = 1;
      if (has_second) {
        ASSERT_TRUE(executor->launch(in_groups(plan_of(++id, 1, {4, 5}), *executor)));
      }
      while (!state.stands) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const auto begin = std::chrono::steady_clock::now();
      const auto result = executor->collect(*first);
      const auto took = std::chrono::steady_clock::now() - begin;
      state.released = true;
      ASSERT_FALSE(result) << "stage " << bad;
      EXPECT_EQ(result.error().code, ErrorCode::kInternal) << result.error().to_string();
      EXPECT_EQ(result.error().where, "pipeline-parallel-size");
      EXPECT_NE(result.error().message.find("stage " + std::to_string(bad) + " of 3 stood still"),
                std::string::npos)
          << result.error().message;
      EXPECT_LT(took, std::chrono::seconds(30)) << "stage " << bad;
      EXPECT_FALSE(executor->launch(in_groups(plan_of(++id, 2, {4}), *executor)))
          << "it is dead from then on";
    }
  }
}

// Every golden checkpoint, loaded in stages, serves what one device does, which golden_serving_test
// compares with Hugging Face transformers.
class GoldenPipeline : public ::testing::TestWithParam<std::string> {
 protected:
  static Result<exec::LoadedModel> load(int32_t num_stages) {
    const auto checkpoint = value_of(weights::Checkpoint::open_folder(
        std::string(RUDDER_SOURCE_DIR) + "/tests/golden/" + GetParam()));
    exec::ExecSettings settings;
    settings.max_model_len = 96;
    settings.kv_cache_memory_bytes = 4 << 20;
    settings.parallel.stages = num_stages;
    exec::Ranks ranks;
    for (int32_t i = 0; i < num_stages; ++i) {
      ranks.push_back(value_of(
          cpu::make_cpu_ops({.dtype = tensor::DType::kBF16, .num_threads = 1, .isa = {}})));
    }
    return exec::load_model(*checkpoint, std::move(ranks), settings,
                            {.max_num_seqs = 8, .max_num_batched_tokens = 50}, {});
  }
};

TEST_P(GoldenPipeline, AsOneDevice) {
  const exec::LoadedModel alone = value_of(load(1));
  std::vector<Ask> asks = spread(random_asks(6, 41, 24));
  for (Ask& ask : asks) {
    if (ask.prompt.size() > 60) ask.prompt.resize(60);
    ask.max_len = std::min(ask.max_len, static_cast<int32_t>(ask.prompt.size()) + 24);
  }
  sched::SchedSettings settings;
  settings.max_num_seqs = 8;
  settings.max_num_batched_tokens = 50;
  const std::vector<Got> expected = run(*alone.executor, settings, asks).got;
  const auto num_layers = static_cast<int32_t>(alone.spec.layers.size());
  for (const int32_t num_stages : {2, 3}) {
    Result<exec::LoadedModel> pipeline = load(num_stages);
    if (num_stages > num_layers) {
      ASSERT_FALSE(pipeline);
      EXPECT_EQ(pipeline.error().where, "pipeline-parallel-size");
      continue;
    }
    if (alone.spec.layer_embedding.exists()) {
      ASSERT_FALSE(pipeline);
      EXPECT_EQ(pipeline.error().where, "hidden_size_per_layer_input");
      continue;
    }
    ASSERT_TRUE(pipeline) << pipeline.error().to_string();
    EXPECT_EQ(std::ssize(pipeline->memory.stages), num_stages);
    for (const exec::MemoryBudget& stage : pipeline->memory.stages) {
      EXPECT_LT(stage.weights.bytes, alone.memory.weights.bytes);
      EXPECT_LE(stage.kv.block_bytes, alone.memory.kv.block_bytes);
    }
    settings.num_cohorts = num_stages;
    expect_same(expected, run(*pipeline->executor, settings, asks).got,
                std::to_string(num_stages) + " stages");
  }
}

std::vector<std::string> golden_pipeline_names() {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(RUDDER_SOURCE_DIR) + "/tests/golden")) {
    if (entry.is_directory()) names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}
INSTANTIATE_TEST_SUITE_P(Checkpoints, GoldenPipeline, ::testing::ValuesIn(golden_pipeline_names()),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace rudder::metamorphic
