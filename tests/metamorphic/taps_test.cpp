// Steering and capture through the real scheduler and executor: what a sequence gets depends on it
// alone, whatever runs beside it, however its prompt is cut, ahead of the host or not, from graphs
// or op by op (tap.T1 to T8).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "metamorphic/harness.h"
#include "metamorphic/tap_asks.h"
#include "rudder/testing/async_ops.h"
#include "rudder/testing/low_precision_ops.h"
#include "rudder/testing/tape_ops.h"

namespace rudder::metamorphic {
namespace {

using tap::Point;
using tap::Site;
using testing::TinyArch;

sched::SchedSettings settings_of(int32_t max_seqs, int32_t budget, int32_t in_flight) {
  sched::SchedSettings settings;
  settings.max_num_seqs = max_seqs;
  settings.max_num_batched_tokens = budget;
  settings.max_in_flight = in_flight;
  return settings;
}

class TapServing : public ::testing::TestWithParam<Pair> {
 protected:
  static TinyArch arch() { return std::get<1>(GetParam()); }
  static const Backend& backend() { return backends()[std::get<0>(GetParam())]; }
  static std::unique_ptr<exec::DeviceExecutor> executor(
      const step::Capacity& capacity, const Backend& device = backend(),
      const exec::DeviceExecutor::Options& options = {}) {
    return tiny_executor(device, arch(), with_encodes(capacity, arch()), options);
  }
  static Backend taped() {
    return {"tape", [] { return testing::make_tape_ops(backend().make()); }};
  }
  static Backend async_taped() {
    return {"async_tape",
            [] { return testing::make_async_ops(testing::make_tape_ops(backend().make())); }};
  }
  // A prompt in slot 0 that runs a row of the table.
  static step::StepPlan prompt_plan(step::StepId id, int32_t tap_row) {
    step::StepPlan plan;
    plan.id = id;
    step::SlotEdit edit;
    edit.slot = step::SlotId(0);
    edit.generation = 1;
    edit.sampling.temperature = 0;
    edit.sampling.num_logprobs = 0;
    edit.blocks = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}};
    edit.prompt_len = 8;
    edit.max_len = 180;
    plan.slots = {edit};
    step::SeqWork work;
    work.slot = edit.slot;
    work.generation = 1;
    work.q_len = 8;
    work.logits = step::LogitsWanted::kLast;
    work.tap_row = tap_row;
    plan.seqs = {work};
    plan.tokens = {1, 2, 3, 4, 5, 6, 7, 8};
    return plan;
  }
  static tap::Geometry geometry() { return with_taps(kRoomy, arch()).geometry; }
};

// Asks for a fresh start again and again.
class Restarting final : public step::Executor {
 public:
  explicit Restarting(std::unique_ptr<step::Executor> inner) : inner_(std::move(inner)) {}
  step::Capacity capacity() const override { return inner_->capacity(); }
  Result<step::Ticket> launch(std::shared_ptr<const step::StepPlan> plan) override {
    ++num_launched_;
    return inner_->launch(std::move(plan));
  }
  Result<void> supply(step::Ticket ticket, std::span<const uint32_t> masks) override {
    return inner_->supply(ticket, masks);
  }
  Result<step::StepResult> collect(step::Ticket ticket) override { return inner_->collect(ticket); }
  bool ready(step::Ticket ticket) override { return inner_->ready(ticket); }
  bool wants_fresh_start() const override { return num_launched_ >= kSteps; }
  void start_afresh() override {
    num_launched_ = 0;
    ++num_starts_;
  }
  int num_starts() const { return num_starts_; }

 private:
  static constexpr int kSteps = 13;
  const std::unique_ptr<step::Executor> inner_;
  int num_launched_ = 0;
  int num_starts_ = 0;
};

TEST_P(TapServing, AFreshStartChangesNothing) {
  std::vector<Ask> asks = random_asks(12, 8, 60);
  add_random_taps(asks, with_encodes(kRoomy, arch()), 4);
  for (Ask& ask : asks) {
    // Computed again one token a step: in the steps between two starts, or it would never end.
    if (ask.taps == nullptr || !ask.taps->is_controlled) continue;
    ask.max_len = std::min(ask.max_len, static_cast<int32_t>(ask.prompt.size()) + 6);
  }
  const std::vector<Got> alone = run_alone(*executor(kRoomy), asks);
  for (size_t i = 0; i < asks.size(); ++i) asks[i].arrival = static_cast<int32_t>(i / 4 * 9);
  Restarting restarting(executor(kRoomy));
  const Outcome outcome = run(restarting, settings_of(16, 40, 3), asks);
  EXPECT_GT(restarting.num_starts(), 3);
  expect_same(alone, outcome.got, "fresh starts");
}

TEST_P(TapServing, EverythingAtOnceAsAlone) {
  std::vector<Ask> asks = random_asks(15, 5, 100);
  add_random_taps(asks, with_encodes(kRoomy, arch()), 9);
  const std::vector<Got> alone = run_alone(*executor(kRoomy), asks);
  EXPECT_TRUE(std::ranges::any_of(alone, [](const Got& got) { return got.captured.size() > 20; }));
  for (size_t i = 0; i < asks.size(); ++i) asks[i].arrival = static_cast<int32_t>(i / 5 * 9);
  step::Capacity tight = kRoomy;
  tight.num_blocks = tight_blocks(arch());
  struct Way {
    Backend device;
    int32_t budget;
  };
  for (const Way& way : {Way{backend(), 17}, Way{taped(), 60}, Way{async_taped(), 40}}) {
    const Outcome outcome = run(*executor(tight, way.device), settings_of(16, way.budget, 3), asks);
    const std::string& what = way.device.name;
    EXPECT_GT(outcome.stats.preemptions, 0u) << what;
    EXPECT_EQ(outcome.lost_tokens, 0) << what;
    EXPECT_EQ(outcome.graph_steps > 0, what != backend().name) << what;
    expect_same(alone, outcome.got, what);
  }
}

// tap.T5: one prompt under one program, another, the first again, and none, each twice.
TEST_P(TapServing, CachedAsComputed) {
  std::mt19937 engine(8);
  std::vector<std::shared_ptr<const tap::SequenceTaps>> taps(3);
  for (uint64_t content = 0; content < 2; ++content) {
    tap::Program program;
    tap::TapOp op;
    add_op(program, geometry(), {1, Site::kResidMid}, op, 4, engine);
    taps[content] = steered_by(std::move(program), content + 1);
  }
  std::vector<Ask> asks;
  const Ask whole = random_asks(1, 12).front();
  for (const size_t i : {0, 1, 0, 2, 1, 2, 0}) {
    asks.push_back(whole);
    asks.back().taps = taps[i];
    asks.back().arrival = static_cast<int32_t>(asks.size()) * 60;
  }
  const Outcome cached = run(*executor(kRoomy, taped()), settings_of(16, 128, 2), asks);
  int num_cached = 0;
  for (const Got& got : cached.got) num_cached += got.cached_tokens > 0 ? 1 : 0;
  EXPECT_EQ(num_cached, 4);  // all but the first of each
  EXPECT_NE(cached.got[0].logprobs, cached.got[1].logprobs);
  EXPECT_NE(cached.got[0].logprobs, cached.got[3].logprobs);
  expect_same(run_alone(*executor(kRoomy), asks), cached.got, "cached");
}

TEST_P(TapServing, GraphedAsEager) {
  std::vector<Ask> asks = random_asks(20, 6);
  add_random_taps(asks, with_taps(kRoomy, arch()), 10);
  const Outcome eager =
      run(*executor(kRoomy, taped(), {.enforce_eager = true}), settings_of(16, 256, 1), asks);
  EXPECT_EQ(eager.graph_steps, 0);
  const Outcome graphed = run(*executor(kRoomy, taped()), settings_of(16, 256, 1), asks);
  EXPECT_GT(graphed.graph_steps, graphed.steps / 2);
  expect_same(eager.got, graphed.got, "graphs");
}

// Programs that go on through the iterations of a step; schedules and latches move with them.
TEST_P(TapServing, RepeatedAsSingle) {
  std::vector<Ask> asks = random_asks(10, 13, 60);
  add_random_taps(asks, with_encodes(kRoomy, arch()), 14);
  for (Ask& ask : asks) {
    if (ask.taps == nullptr) continue;
    auto steered = std::make_shared<tap::SequenceTaps>(*ask.taps);
    steered->capture = nullptr;  // a step that captures is not repeated
    steered->captured.clear();
    if (steered->thoughts) steered->thoughts->open = false;  // nor is one with thoughts
    ask.taps = steered;
  }
  step::Capacity capacity = kRoomy;
  capacity.max_repeat = 4;
  for (const Backend& device : {backend(), async_taped()}) {
    sched::SchedSettings settings = settings_of(16, 128, 2);
    settings.multi_step = 4;
    const Outcome repeated = run(*executor(capacity, device), settings, asks);
    EXPECT_GT(repeated.stats.iterations, repeated.stats.steps) << device.name;
    expect_same(run_alone(*executor(kRoomy), asks), repeated.got, device.name);
  }
}

// tap.T1: what is not steered is served as by an executor that cannot steer.
TEST_P(TapServing, OthersAsWithoutTaps) {
  std::vector<Ask> asks = random_asks(18, 7);
  const Outcome plain =
      run(*tiny_executor(backend(), arch(), kRoomy), settings_of(16, 128, 2), asks);
  const Outcome idle = run(*executor(kRoomy, taped()), settings_of(16, 128, 2), asks);
  expect_same(plain.got, idle.got, "nobody is steered");
  EXPECT_GT(idle.graph_steps, 0);
  add_random_taps(asks, with_encodes(kRoomy, arch()), 11);
  const Outcome mixed = run(*executor(kRoomy, taped()), settings_of(16, 128, 2), asks);
  std::vector<Got> expected;
  std::vector<Got> got;
  int num_steered = 0;
  int num_moved = 0;
  for (size_t i = 0; i < asks.size(); ++i) {
    if (asks[i].taps == nullptr || asks[i].taps->segments.empty()) {
      expected.push_back(plain.got[i]);
      got.push_back(mixed.got[i]);
      got.back().captured.clear();
    } else {
      ++num_steered;
      num_moved += mixed.got[i].logprobs != plain.got[i].logprobs ? 1 : 0;
    }
  }
  EXPECT_GE(num_moved, num_steered / 2);
  expect_same(expected, got, "beside steered ones");
}

TEST_P(TapServing, ZeroVectorsAsNone) {
  std::vector<Ask> asks = random_asks(9, 8);
  const Outcome plain =
      run(*tiny_executor(backend(), arch(), kRoomy), settings_of(16, 128, 2), asks);
  std::mt19937 engine(3);
  uint64_t content = 0;
  for (Ask& ask : asks) {
    tap::Program program;
    for (int32_t layer = 0; layer < geometry().num_layers; ++layer) {
      for (const Site site : {Site::kResidPre, Site::kAttnOut, Site::kMlpAct, Site::kResidPost}) {
        if (!geometry().has({layer, site})) continue;
        tap::TapOp op;
        op.strength = content % 2 == 0 ? 2.0f : 0.0f;
        add_op(program, geometry(), {layer, site}, op, content % 2 == 0 ? 0 : 5, engine);
      }
    }
    ask.taps = steered_by(std::move(program), ++content);
  }
  const Outcome steered = run(*executor(kRoomy, taped()), settings_of(16, 128, 2), asks);
  expect_same(plain.got, steered.got, "zero");
}

// A backend with a GPU's dtypes: operands are quantised behind the taps, rows captured as bf16.
TEST_P(TapServing, LowPrecisionAsAlone) {
  if (std::get<0>(GetParam()) != 0) GTEST_SKIP() << "one backend";
  if (arch() == testing::TinyArch::kDelta || arch() == testing::TinyArch::kSpaces)
    GTEST_SKIP() << "its gates would be fp8";
  if (arch() == testing::TinyArch::kLatent) GTEST_SKIP() << "it has no latent rows";
  if (arch() == testing::TinyArch::kByLayer) GTEST_SKIP() << "a product of 24 inputs has no fp8";
  const Backend low = {"low", [] { return testing::make_low_precision_ops(); }};
  const Backend async_low = {
      "async_low", [] {
        return testing::make_async_ops(testing::make_tape_ops(testing::make_low_precision_ops()));
      }};
  step::Capacity capacity = with_taps(kRoomy, arch());
  capacity.geometry.dtype = tensor::DType::kBF16;
  std::vector<Ask> asks = random_asks(9, 15);
  add_random_taps(asks, capacity, 16);
  sched::SchedSettings settings = settings_of(1, 512, 1);
  settings.enable_prefix_caching = false;
  const Outcome alone = run(*tiny_executor(low, arch(), capacity), settings, asks);
  const Outcome together =
      run(*tiny_executor(async_low, arch(), capacity), settings_of(16, 23, 3), asks);
  EXPECT_GT(together.graph_steps, 0);
  expect_same(alone.got, together.got, "low precision");
}

// A captured row after an op is what the op made of the one before it; what follows reads it.
TEST_P(TapServing, CapturesTellBeforeFromAfter) {
  std::mt19937 engine(4);
  tap::Program program;
  tap::TapOp op;
  op.strength = 1.5f;
  const Point point{1, Site::kResidPost};
  add_op(program, geometry(), point, op, 4, engine);
  const auto width = static_cast<size_t>(geometry().width(point));
  const std::vector<float> vector(program.vectors.begin(),
                                  program.vectors.begin() + static_cast<ptrdiff_t>(width));
  auto taps = std::make_shared<tap::SequenceTaps>(*steered_by(program, 1));
  auto set = std::make_shared<tap::CaptureSet>();
  set->points = {{point, false}, {point, true}, {{2, Site::kResidPre}, false}};
  taps->capture = set;
  taps->captured = {{0, tap::kNoEnd}};
  Ask ask;
  ask.prompt = {5, 9, 100, 42, 7};
  ask.sampling.temperature = 0;
  ask.max_len = 16;
  ask.taps = taps;
  const Outcome outcome = run(*executor(kRoomy, taped()), settings_of(4, 128, 2), {ask});
  ASSERT_EQ(outcome.got[0].tokens.size(), 11u);
  ASSERT_EQ(outcome.got[0].captured.size(), 15u);  // the last token is never an input
  for (const auto& [position, rows] : outcome.got[0].captured) {
    for (size_t i = 0; i < width; ++i) {
      ASSERT_EQ(rows[width + i], rows[i] + 1.5f * vector[i]) << position;
      ASSERT_EQ(rows[2 * width + i], rows[width + i]) << position;
    }
  }
}

TEST_P(TapServing, EditsAloneAreAStep) {
  std::mt19937 engine(9);
  tap::Program program;
  const bool has_mlp = geometry().has({0, Site::kMlpOut});
  add_op(program, geometry(), {0, has_mlp ? Site::kMlpOut : Site::kAttnOut}, {}, 5, engine);
  step::StepPlan edits;
  edits.id = 1;
  edits.tap_edits = {{7, 100, 64, std::make_shared<const tap::Program>(program)}};
  const step::StepPlan steered = prompt_plan(2, 7);
  const auto first = executor(kRoomy, async_taped());
  ASSERT_TRUE(first->launch(in_groups(edits, *first)));
  ASSERT_TRUE(first->launch(in_groups(steered, *first)));
  const auto alone = first->collect({1});
  ASSERT_TRUE(alone);
  EXPECT_TRUE(alone->seqs.empty());
  const auto after = first->collect({2});
  ASSERT_TRUE(after);
  // As with the edit in the step that needs it; and not as without.
  step::StepPlan together = steered;
  together.tap_edits = edits.tap_edits;
  const auto second = executor(kRoomy, async_taped());
  ASSERT_TRUE(second->launch(in_groups(together, *second)));
  const auto once = second->collect({2});
  ASSERT_TRUE(once);
  EXPECT_EQ(after->seqs[0].logprobs[0].logprob, once->seqs[0].logprobs[0].logprob);
  const auto third = executor(kRoomy, async_taped());
  ASSERT_TRUE(third->launch(in_groups(prompt_plan(2, 0), *third)));
  const auto plain = third->collect({2});
  ASSERT_TRUE(plain);
  EXPECT_NE(plain->seqs[0].logprobs[0].logprob, once->seqs[0].logprobs[0].logprob);
}

// Samples that a latch clips are counted over the whole prompt, and told with its end, also where
// the prompt's last tokens run no program, and once more when the slot is opened again.
TEST_P(TapServing, ClippedSamplesAreToldWhereThePromptEnds) {
  std::mt19937 engine(9);
  tap::Program program;
  tap::TapOp score;
  score.kind = tap::OpKind::kScore;
  score.latch = 2;
  add_op(program, geometry(), {1, Site::kResidPre}, score, 1e9f, engine);
  const auto made = executor(kRoomy, async_taped());
  const auto run_plan = [&](step::StepPlan plan) {
    plan = *in_groups(std::move(plan), *made);
    EXPECT_TRUE(made->launch(std::make_shared<const step::StepPlan>(plan)));
    return value_of(made->collect({plan.id})).seqs.at(0).clipped_samples;
  };
  step::StepPlan whole = prompt_plan(1, 7);
  whole.tap_edits = {{7, 100, 64, std::make_shared<const tap::Program>(program)}};
  EXPECT_EQ(run_plan(whole), 8);

  step::StepPlan first = prompt_plan(2, 7);  // 5 tokens, then 3 that do not score
  first.slots[0].generation = 2;
  first.seqs[0].generation = 2;
  first.seqs[0].q_len = 5;
  first.seqs[0].logits = step::LogitsWanted::kNone;
  first.tokens.resize(5);
  EXPECT_EQ(run_plan(first), 0);
  step::StepPlan rest = prompt_plan(3, 0);
  rest.slots.clear();
  rest.seqs[0].generation = 2;
  rest.seqs[0].kv_len = 5;
  rest.seqs[0].q_len = 3;
  rest.tokens = {6, 7, 8};
  EXPECT_EQ(run_plan(rest), 5);

  step::StepPlan decode = rest;
  decode.id = 4;
  decode.seqs[0].kv_len = 8;
  decode.seqs[0].q_len = 1;
  decode.seqs[0].tokens = step::TokenSource::kCarry;
  decode.tokens.clear();
  EXPECT_EQ(run_plan(decode), 0);
}

// An executor that captures prompts alone has no graphs for that: a prompt of one token, which
// looks like a decode step, runs op by op; steps without captures replay.
TEST_P(TapServing, PromptsAreCapturedWithoutGraphsOfTheirOwn) {
  auto set = std::make_shared<tap::CaptureSet>();
  set->points = {{.point = {2, Site::kFinalNorm}, .after = true}};
  step::Capacity capacity = with_taps(kRoomy, arch());
  capacity.taps = {.num_capture_sets = 1, .capture_elements = 1024, .captures_prompts_only = true};
  const auto embedding = tiny_executor(async_taped(), arch(), capacity);
  step::StepPlan plan = prompt_plan(1, 0);
  plan.slots[0].prompt_len = 1;
  plan.tokens = {1};
  plan.seqs[0].q_len = 1;
  plan.seqs[0].capture_set = 0;
  plan.seqs[0].captures = {{0, 1}};
  plan.capture_edits = {{0, set}};
  ASSERT_TRUE(embedding->launch(in_groups(plan, *embedding)));
  const auto captured = embedding->collect({1});
  ASSERT_TRUE(captured);
  EXPECT_FALSE(captured->from_graph);
  ASSERT_NE(captured->captured, nullptr);
  EXPECT_NE(captured->captured->data, nullptr);
  plan.id = 2;
  plan.slots.clear();
  plan.capture_edits.clear();
  plan.tokens.clear();
  plan.seqs[0].kv_len = 1;
  plan.seqs[0].tokens = step::TokenSource::kCarry;
  plan.seqs[0].capture_set = -1;
  plan.seqs[0].captures.clear();
  ASSERT_TRUE(embedding->launch(in_groups(plan, *embedding)));
  const auto decoded = embedding->collect({2});
  ASSERT_TRUE(decoded);
  EXPECT_TRUE(decoded->from_graph);
}

// A pool that nobody empties: what does not fit is reported as lost, and nothing waits.
TEST_P(TapServing, CapturesAreLostWhenNobodyReadsThem) {
  auto taps = std::make_shared<tap::SequenceTaps>();
  auto set = std::make_shared<tap::CaptureSet>();
  for (int32_t layer = 0; layer < 3; ++layer) set->points.push_back({{layer, Site::kResidPost}});
  taps->capture = set;
  taps->captured = {{0, tap::kNoEnd}};
  step::Capacity capacity = with_taps(kRoomy, arch());
  capacity.taps.capture_elements = 8 * tap::record_elements(*set, capacity.geometry);
  const auto tight = tiny_executor(async_taped(), arch(), capacity);
  step::StepPlan plan = prompt_plan(1, 0);
  plan.capture_edits = {{3, set}};
  step::SeqWork work = plan.seqs[0];
  work.capture_set = 3;
  work.captures = {{0, 8}};
  plan.seqs = {work};
  std::vector<std::shared_ptr<const tap::CapturedRows>> held;
  int num_lost = 0;
  for (step::StepId id = 1; id <= 120; ++id) {
    plan.id = id;
    ASSERT_TRUE(tight->launch(in_groups(plan, *tight)));
    const auto result = tight->collect({id});
    ASSERT_TRUE(result);
    ASSERT_NE(result->captured, nullptr);
    EXPECT_EQ(result->captured->tokens.size(), static_cast<size_t>(work.q_len));
    EXPECT_EQ(result->seqs[0].tokens.size(), 1u);
    num_lost += result->captured->data == nullptr ? 1 : 0;
    held.push_back(result->captured);
    if (id == 110) {
      EXPECT_GT(num_lost, 0);
      held.clear();
      num_lost = 0;
    }
    work.kv_len += work.q_len;
    work.q_len = 1;
    work.tokens = step::TokenSource::kCarry;
    work.captures = {{0, 1}};
    plan.slots.clear();
    plan.capture_edits.clear();
    plan.seqs = {work};
    plan.tokens.clear();
  }
  EXPECT_EQ(num_lost, 0);  // since the leases are back
}

// The reference and the best: programs are run by the same code on all of them.
std::vector<size_t> reference_and_best() {
  return {0, backends().size() - 1};
}
INSTANTIATE_TEST_SUITE_P(Tiny, TapServing, ::testing::ValuesIn(daily_pairs(reference_and_best())),
                         pair_name);
INSTANTIATE_TEST_SUITE_P(Full, TapServing, ::testing::ValuesIn(other_pairs(reference_and_best())),
                         pair_name);

}  // namespace
}  // namespace rudder::metamorphic
