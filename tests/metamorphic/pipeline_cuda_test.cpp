// Stages of a pipeline on GPUs, through the real scheduler and executor: the results of one GPU,
// bit for bit where both are batch-invariant, from graphs, with whatever runs in flight; and a
// typed error in time when a stage fails or stands still, on its host or on its device. Where there
// are not two GPUs it is skipped by name.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <new>
#include <thread>

#include "metamorphic/guess_checks.h"
#include "metamorphic/guess_notes.h"
#include "metamorphic/guessers.h"
#include "metamorphic/served_parts.h"
#include "metamorphic/staged_ranks.h"
#include "metamorphic/tap_asks.h"
#include "rudder/cuda/cuda_ops.h"
#include "rudder/cuda/device_info.h"
#include "rudder/cuda/peer_message.h"
#include "rudder/exec/pipeline_executor.h"
#include "rudder/exec/stage_link.h"
#include "rudder/model/stage.h"
#include "rudder/testing/forwarding_ops.h"
#include "rudder/testing/random_proposer.h"

namespace rudder::metamorphic {
namespace {

using testing::TinyArch;
using StageDevices = std::vector<int32_t>;
using StageWrap = std::function<std::unique_ptr<ops::Ops>(int32_t, std::unique_ptr<ops::Ops>)>;

struct GpuPipelineAsk {
  StageDevices devices = {0};  // one: the device is alone
  tensor::DType dtype = tensor::DType::kBF16;
  bool has_taps = false;
  bool has_patterns = false;
  bool enforce_eager = false;
  Guesser guesser = Guesser::kNone;
  int32_t patience_ms = exec::StageLink::kPatienceMs;
  StageWrap wrap = {};
};

int32_t num_gpus_visible() {
  cuda::load_kernels_early();
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

void give_head_kernels(model::DraftHeadSpec& head) {
  use_served_parts(head.layer);
}

model::ModelSpec staged_spec(TinyArch arch) {
  model::ModelSpec spec = testing::tiny_spec(arch);
  use_served_parts(spec);
  return spec;
}

// Batch-invariant, as where bits are compared each device must be.
std::vector<std::unique_ptr<ops::Ops>> gpus_of(const GpuPipelineAsk& ask) {
  cuda::CudaOpsSettings settings;
  settings.linear_dtype = ask.dtype;
  settings.kv = {ask.dtype};
  settings.batch_invariant = true;
  if (ask.devices.size() > 1) return value_of(cuda::make_cuda_stages(settings, ask.devices));
  std::vector<std::unique_ptr<ops::Ops>> alone;
  alone.push_back(value_of(cuda::make_cuda_ops(settings)));
  return alone;
}

exec::KvLayout staged_kv(const model::ModelSpec& whole, const ops::Ops& ops,
                         const step::Capacity& capacity, const model::Stage& stage) {
  return exec::stage_kv_layout(
      value_of(exec::make_kv_layout(whole, {.kv = ops.kv_format(),
                                            .block_size = capacity.block_size,
                                            .max_seq_len = capacity.max_seq_len,
                                            .lookback = ops.attention_lookback()})),
      stage);
}

std::unique_ptr<step::Executor> gpu_pipeline(TinyArch arch, step::Capacity capacity,
                                             const GpuPipelineAsk& ask) {
  const model::ModelSpec whole = staged_spec(arch);
  const auto count = static_cast<int32_t>(ask.devices.size());
  auto devices = gpus_of(ask);
  auto stages = value_of(model::divide_layers(
      whole, {}, count, model::all_as(devices.front()->stored_format({}).value()), {ask.dtype}));
  join_guesser(stages, whole, ask.guesser);
  std::shared_ptr<exec::StageLink> link;
  if (count > 1) {
    link = std::make_shared<exec::StageLink>(count, capacity.max_in_flight, ask.patience_ms);
  }
  if (ask.has_taps) {
    capacity = with_encodes(capacity, arch);
    capacity.taps.patterns = ask.has_patterns;
    capacity.geometry = tapped_geometry(whole, tensor::DType::kBF16);
  }
  std::vector<std::unique_ptr<step::Executor>> executors;
  for (const model::Stage& stage : stages) {
    exec::DeviceExecutor::Model model;
    model.ops = std::move(devices[static_cast<size_t>(stage.index)]);
    if (ask.wrap) model.ops = ask.wrap(stage.index, std::move(model.ops));
    model.weights = value_of(testing::random_weights(whole, *model.ops, 7, stage));
    model.spec = stage.is_alone() ? whole : model::stage_spec(whole, stage);
    add_guesser(model, whole, ask.guesser, give_head_kernels);
    model.kv = staged_kv(whole, *model.ops, capacity, stage);
    step::Capacity mine = capacity;
    add_guesser(mine, ask.guesser);
    mine.kv_groups = model.kv.groups;
    mine.num_blocks *= model.kv.groups.size();
    executors.push_back(value_of(exec::DeviceExecutor::start(
        std::move(model), mine, {.enforce_eager = ask.enforce_eager, .link = link})));
  }
  if (count == 1) return std::move(executors.front());
  return std::make_unique<exec::PipelineExecutor>(std::move(executors));
}

using GpuStages = std::tuple<StageDevices, TinyArch>;

class GpuPipeline : public ::testing::TestWithParam<GpuStages> {
 protected:
  void SetUp() override {
    const int32_t wanted = *std::ranges::max_element(devices()) + 1;
    if (num_gpus_visible() < wanted) {
      GTEST_SKIP() << "needs " << wanted << " GPUs, " << num_gpus_visible() << " visible";
    }
    const auto layers = static_cast<int32_t>(staged_spec(arch()).layers.size());
    if (layers < num_stages()) GTEST_SKIP() << layers << " layers";
  }
  static const StageDevices& devices() { return std::get<0>(GetParam()); }
  static int32_t num_stages() { return static_cast<int32_t>(devices().size()); }
  static TinyArch arch() { return std::get<1>(GetParam()); }
  static std::unique_ptr<step::Executor> pipeline(const step::Capacity& capacity,
                                                  GpuPipelineAsk ask = {}) {
    ask.devices = devices();
    return gpu_pipeline(arch(), capacity, ask);
  }
  static std::unique_ptr<step::Executor> alone(const step::Capacity& capacity,
                                               const GpuPipelineAsk& ask = {}) {
    return gpu_pipeline(arch(), capacity, ask);
  }
};

TEST_P(GpuPipeline, AsOneDeviceWhateverIsInFlight) {
  const std::vector<Ask> asks = arriving(random_masked_asks(16, 11, 40));
  const std::vector<Got> expected = run_alone(*alone(kRoomy), asks);
  step::Capacity tight = kRoomy;
  tight.num_blocks = 24;
  const Outcome cohorts = run(*pipeline(tight), staged_settings(num_stages()), asks);
  expect_same(expected, cohorts.got, "in cohorts");
  EXPECT_GT(cohorts.graph_steps, 0);
  EXPECT_GT(cohorts.constrained_steps, 0);
  EXPECT_GT(cohorts.scored_steps, 0);
  const Outcome repeated = run(*pipeline(tight), staged_settings(1, 4), asks);
  expect_same(expected, repeated.got, "run ahead and repeated");
  const auto eager = pipeline(tight, {.enforce_eager = true});
  const Outcome by_op = run(*eager, staged_settings(num_stages()), asks);
  expect_same(expected, by_op.got, "op by op");
  EXPECT_EQ(by_op.graph_steps, 0);
}

// Where one device fuses a product's scales into the op behind it, a stage rounds between the two.
TEST_P(GpuPipeline, Fp8IsAsAlone) {
  const GpuPipelineAsk ask = {.dtype = tensor::DType::kF8E4M3};
  const std::vector<Ask> asks = arriving(random_masked_asks(12, 6, 40));
  const Outcome busy = run(*pipeline(kRoomy, ask), staged_settings(num_stages()), asks);
  EXPECT_GT(busy.graph_steps, 0);
  expect_same(run_alone(*pipeline(kRoomy, ask), asks), busy.got, "fp8");
}

TEST_P(GpuPipeline, SteersAndCapturesAsOneDevice) {
  const GpuPipelineAsk ask = {.has_taps = true};
  const auto executor = pipeline(kRoomy, ask);
  std::vector<Ask> asks = random_asks(12, 21, 24);
  add_random_taps(asks, executor->capacity(), 22);
  asks = arriving(std::move(asks));
  const Outcome got = run(*executor, staged_settings(num_stages()), asks);
  EXPECT_EQ(got.lost_tokens, 0);
  EXPECT_GT(got.graph_steps, 0);
  expect_same(run_alone(*alone(kRoomy, ask), asks), got.got, "taps");
}

// The sums of a pattern are taken in an order that hangs on the step.
TEST_P(GpuPipeline, PatternsAreNearlyThoseOfOneDevice) {
  const GpuPipelineAsk ask = {.has_taps = true, .has_patterns = true};
  const auto executor = pipeline(kRoomy, ask);
  std::vector<Ask> asks = random_asks(12, 41, 24);
  add_random_taps(asks, executor->capacity(), 42);
  const std::vector<Got> expected = run(*alone(kRoomy, ask), plain_settings(), asks).got;
  const std::vector<Got> got = run(*executor, staged_settings(num_stages()), asks).got;
  double error = 0;
  double size = 0;
  for (size_t i = 0; i < asks.size(); ++i) {
    EXPECT_EQ(got[i].tokens, expected[i].tokens) << i;
    for (const auto& [position, row] : expected[i].captured) {
      const std::vector<float>& other = got[i].captured.at(position);
      ASSERT_EQ(other.size(), row.size());
      for (size_t k = 0; k < row.size(); ++k) {
        error += std::abs(double{row[k]} - double{other[k]});
        size += std::abs(double{row[k]});
      }
    }
  }
  RecordProperty("row_error", fmt::format("{:.6f}", error / size));
  EXPECT_GT(size, 0);
  EXPECT_LT(error, size * 0.01);
}

TEST_P(GpuPipeline, VerifiesDraftsAsOneDevice) {
  const std::vector<Ask> asks = random_asks(12, 31, 40);
  const std::vector<Got> expected = run_alone(*alone(kRoomy), asks);
  step::Capacity capacity = kRoomy;
  capacity.drafts.max_draft = 4;
  std::vector<int32_t> whole;
  testing::RandomProposer proposer(11, 160, [&](sched::SequenceId id) {
    whole = asks[id.value].prompt;
    const auto& tokens = expected[id.value].tokens;
    whole.insert(whole.end(), tokens.begin(), tokens.end());
    return std::span<const int32_t>(whole);
  });
  const auto executor = pipeline(capacity);
  const Outcome got = run(*executor, staged_settings(num_stages()), asks, &proposer);
  expect_same(expected, got.got, "drafts");
  EXPECT_GT(got.stats.accepted_tokens, 20u);
  EXPECT_GT(got.graph_steps, 0);
}

// On the last stage, by a model, or by heads that read rows of that stage or of all.
TEST_P(GpuPipeline, GuessesAreThoseOfOneDeviceAndTheTextIsThatOfPlainDecoding) {
  const std::vector<Ask> asks = arriving(random_masked_asks(8, 63, 30));
  const std::vector<Got> plain = run_alone(*alone(kRoomy), asks);
  step::Capacity capacity = kRoomy;
  capacity.drafts.max_draft = 5;
  for (const Guesser guesser :
       {Guesser::kItself, Guesser::kSharedEmbedding, Guesser::kProduct, Guesser::kMedusa}) {
    if (!takes_guesser(arch(), guesser)) continue;
    SCOPED_TRACE(guesser_name(guesser));
    std::vector<GuessNotes::Notes> notes;
    for (const bool is_staged : {false, true}) {
      const GpuPipelineAsk ask = {.guesser = guesser};
      const auto executor = is_staged ? pipeline(capacity, ask) : alone(capacity, ask);
      GuessNotes noting(*executor);
      const Outcome outcome = run(noting, staged_settings(is_staged ? num_stages() : 1), asks);
      expect_same(plain, outcome.got, is_staged ? "stages" : "one device");
      EXPECT_GT(outcome.stats.draft_tokens, 50u);
      notes.push_back(noting.notes);
    }
    expect_same_guesses(notes[0], notes[1], "stages", 50);
  }
}

// What one stage does wrong, once its second product comes.
enum class StageFault : uint8_t { kHostStands, kDeviceStands, kThrows };

struct FaultPlan {
  StageFault fault = StageFault::kHostStands;
  int32_t device = 0;  // of the stage
  std::atomic<bool> released = false;
};

void stand_until_released(FaultPlan& plan) {
  while (!plan.released) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

class FaultyStageOps final : public testing::PassingOps {
 public:
  FaultyStageOps(std::unique_ptr<ops::Ops> inner, FaultPlan& plan)
      : PassingOps(std::move(inner)), plan_(plan) {}
  ~FaultyStageOps() override {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  void linear(const ops::LinearArgs& args) override {
    if (++num_products_ == 2) misbehave();
    PassingOps::linear(args);
  }

 private:
  void misbehave() {
    if (plan_.fault == StageFault::kThrows) throw std::bad_alloc();
    if (plan_.fault == StageFault::kHostStands) return stand_until_released(plan_);
    // The device waits for a stream that stands still.
    cuda::use_device(plan_.device);
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    blocked_ = value_of(cuda::PeerMessage::make(plan_.device, 64));
    const auto stand = [](void* plan) { stand_until_released(*static_cast<FaultPlan*>(plan)); };
    cudaLaunchHostFunc(stream_, stand, &plan_);
    blocked_->post(stream_);
    inner_->await(*blocked_);
  }

  FaultPlan& plan_;
  int64_t num_products_ = 0;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<cuda::PeerMessage> blocked_;
};

step::StepPlan staged_prompt(uint64_t id, int32_t slot) {
  step::StepPlan plan;
  plan.id = id;
  step::SlotEdit edit;
  edit.slot = step::SlotId(slot);
  edit.generation = 1;
  edit.sampling.temperature = 0;
  edit.blocks = {{slot}};
  edit.prompt_len = 3;
  edit.max_len = 10;
  plan.slots = {edit};
  step::SeqWork work;
  work.slot = edit.slot;
  work.generation = 1;
  work.q_len = 3;
  work.logits = step::LogitsWanted::kLast;
  plan.seqs = {work};
  plan.tokens = {1, 2, 3};
  return plan;
}

class GpuPipelineFailure : public GpuPipeline {};

TEST_P(GpuPipelineFailure, AStageThatFailsOrStandsStillIsATypedErrorInTime) {
  for (const StageFault fault :
       {StageFault::kThrows, StageFault::kHostStands, StageFault::kDeviceStands}) {
    for (int32_t bad = 0; bad < num_stages(); ++bad) {
      FaultPlan plan;
      plan.fault = fault;
      plan.device = devices()[static_cast<size_t>(bad)];
      const StageWrap wrap = [&](int32_t stage, std::unique_ptr<ops::Ops> inner) {
        if (stage != bad) return inner;
        return std::unique_ptr<ops::Ops>(std::make_unique<FaultyStageOps>(std::move(inner), plan));
      };
      const auto executor = pipeline(kRoomy, {.enforce_eager = true, .wrap = wrap});
      const auto begin = std::chrono::steady_clock::now();
      const auto first = executor->launch(in_groups(staged_prompt(1, 0), *executor));
      const auto second = executor->launch(in_groups(staged_prompt(2, 1), *executor));
      ASSERT_TRUE(first && second);
      const auto result = executor->collect(*first);
      const auto took = std::chrono::steady_clock::now() - begin;
      const std::string which = fmt::format("stage {}, fault {}", bad, static_cast<int>(fault));
      EXPECT_FALSE(result) << which;
      EXPECT_LT(took, std::chrono::milliseconds(3000)) << which;
      if (!result && fault == StageFault::kThrows) {
        EXPECT_EQ(result.error().code, ErrorCode::kOverloaded) << result.error().to_string();
      } else if (!result) {
        EXPECT_EQ(result.error().where, "pipeline-parallel-size");
        EXPECT_NE(result.error().message.find(
                      fmt::format("stage {} of {} stood still", bad, num_stages())),
                  std::string::npos)
            << result.error().message;
      }
      EXPECT_FALSE(executor->launch(in_groups(staged_prompt(3, 2), *executor))) << "it is dead";
      plan.released = true;
    }
  }
}

std::string gpu_pipeline_name(const ::testing::TestParamInfo<GpuStages>& test) {
  return fmt::format("on_{}_{}", fmt::join(std::get<0>(test.param), "_"),
                     testing::tiny_arch_name(std::get<1>(test.param)));
}
INSTANTIATE_TEST_SUITE_P(Gpus, GpuPipeline,
                         ::testing::Combine(::testing::Values(StageDevices{0, 1},
                                                              StageDevices{0, 1, 2}),
                                            ::testing::ValuesIn(testing::kTinyArchs)),
                         gpu_pipeline_name);
INSTANTIATE_TEST_SUITE_P(Gpus, GpuPipelineFailure,
                         ::testing::Combine(::testing::Values(StageDevices{0, 1}),
                                            ::testing::Values(TinyArch::kHeadNorm)),
                         gpu_pipeline_name);

}  // namespace
}  // namespace rudder::metamorphic
