// The demo model, recorded under pressure and replayed: the same tokens from plans and masks alone
// (step.I7).
#include "rudder/record/replay.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "metamorphic/harness.h"
#include "rudder/base/token_mask.h"
#include "rudder/exec/make_executor.h"
#include "rudder/record/flight_recorder.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::metamorphic {
namespace {

namespace fs = std::filesystem;

class DemoReplay : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / fmt::format("demo_replay_{}", ::getpid());
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Few blocks: not all sequences fit at once.
  static std::unique_ptr<step::Executor> demo_executor(const Backend& backend,
                                                       const exec::StepLimits& drafting = {}) {
    const auto checkpoint =
        value_of(weights::Checkpoint::open_folder(RUDDER_SOURCE_DIR "/models/demo"));
    exec::ExecSettings settings;
    settings.max_model_len = 256;
    settings.kv_cache_memory_bytes = 2 << 20;
    exec::StepLimits limits = drafting;
    limits.max_num_seqs = 12;
    limits.max_num_batched_tokens = 64;
    limits.max_repeat = 4;
    auto loaded = value_of(exec::load_model(*checkpoint, backend.make(), settings, limits, {}));
    return std::move(loaded.executor);
  }

  std::string record(const Backend& backend, const exec::StepLimits& drafting = {}) {
    auto recorder = value_of(record::FlightRecorder::create(
        demo_executor(backend, drafting), folder_.string(), "demo", int64_t{1} << 30));
    sched::SchedSettings settings;
    settings.multi_step = 4;
    settings.max_num_seqs = 12;
    auto asks = random_masked_asks(24, 11, 120);
    for (Ask& ask : asks) {
      if (ask.mask == nullptr) continue;
      // Of the demo model's vocabulary: the first 160 tokens are as in the mask, no other may come.
      ask.mask = [mask = ask.mask, words = mask_words(recorder->capacity().vocab_size)](
                     const std::vector<int32_t>& output) {
        std::vector<uint32_t> wide = mask(output);
        wide.resize(words);
        return wide;
      };
    }
    outcome_ = run(*recorder, settings, asks);
    return recorder->paths().back();
  }

  fs::path folder_;
  Outcome outcome_;
};

TEST_F(DemoReplay, GivesTheSameTokens) {
  const Backend& backend = backends().back();
  const std::string file = record(backend);
  EXPECT_GT(outcome_.stats.preemptions, 0u);
  EXPECT_GT(outcome_.constrained_steps, 0);
  int64_t num_tokens = 0;
  for (const Got& got : outcome_.got) num_tokens += std::ssize(got.tokens);

  const auto recording = value_of(record::RecordingReader::open(file));
  const auto executor = demo_executor(backend);
  record::ReplayReport report;
  const auto done = record::replay(*recording, *executor, &report);
  ASSERT_TRUE(done) << done.error().to_string();
  EXPECT_EQ(report.num_different, 0) << report.first->what;
  EXPECT_GE(report.num_tokens, num_tokens);
  EXPECT_EQ(report.num_iterations, outcome_.steps);
}

// Plans have trees; what guessed them is not needed.
TEST_F(DemoReplay, GivesTheSameTokensOfTrees) {
  const Backend& backend = backends().back();
  const auto heads =
      value_of(weights::Checkpoint::open_folder(RUDDER_SOURCE_DIR "/models/demo-medusa"));
  exec::StepLimits drafting = {.draft_model = heads.get(),
                               .draft_method = step::DraftMethod::kMedusa};
  for (const auto& [parent, rank] : {std::pair{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}, {3, 0}}) {
    drafting.draft_tree.tree.add(parent);
    drafting.draft_tree.ranks.push_back(rank);
  }
  drafting.max_draft = drafting.draft_tree.tree.size();
  const std::string file = record(backend, drafting);
  EXPECT_GT(outcome_.stats.accepted_tokens, 20u);
  const auto recording = value_of(record::RecordingReader::open(file));
  EXPECT_EQ(recording->header().capacity.drafts.guess_tree, drafting.draft_tree.tree);
  const auto executor =
      demo_executor(backend, {.max_draft = drafting.max_draft, .host_trees = true});
  record::ReplayReport report;
  const auto done = record::replay(*recording, *executor, &report);
  ASSERT_TRUE(done) << done.error().to_string();
  EXPECT_EQ(report.num_different, 0) << report.first->what;
  EXPECT_EQ(report.num_iterations, outcome_.steps);
}

// Drafts are what the executor guesses, which a replay guesses again.
TEST_F(DemoReplay, GivesTheSameTokensOfWhatIsLookedUp) {
  const Backend& backend = backends().back();
  const exec::StepLimits drafting = {.max_draft = 4, .look_up = {.min_n = 1, .max_n = 3}};
  const std::string file = record(backend, drafting);
  EXPECT_GT(outcome_.stats.accepted_tokens, 5u);
  const auto recording = value_of(record::RecordingReader::open(file));
  EXPECT_EQ(recording->header().capacity.drafts.look_up, drafting.look_up);
  const auto executor = demo_executor(backend, drafting);
  record::ReplayReport report;
  const auto done = record::replay(*recording, *executor, &report);
  ASSERT_TRUE(done) << done.error().to_string();
  EXPECT_EQ(report.num_different, 0) << report.first->what;
  EXPECT_EQ(report.num_iterations, outcome_.steps);
  // Not on an executor that would guess otherwise.
  const auto other = demo_executor(backend, {.max_draft = 4, .look_up = {.min_n = 2, .max_n = 3}});
  const auto refused =
      record::replay(*value_of(record::RecordingReader::open(file)), *other, &report);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().where, "look_up.min_n");
}

TEST_F(DemoReplay, FindsAChangedToken) {
  const Backend& backend = backends().back();
  const std::string file = record(backend);
  const auto recording = value_of(record::RecordingReader::open(file));
  const std::string changed = file + ".changed";
  step::StepId step = 0;
  {
    const auto writer =
        value_of(record::RecordingWriter::create(changed, recording->header(), int64_t{1} << 30));
    for (int num_results = 0; auto record = value_of(recording->next());) {
      if (auto* result = std::get_if<step::StepResult>(&*record);
          result != nullptr && step == 0 && ++num_results > 20 && result->seqs.size() > 1 &&
          !result->seqs[1].tokens.empty()) {
        step = result->id;
        result->seqs[1].tokens[0] ^= 1;
      }
      ASSERT_TRUE(std::visit([&](const auto& value) { return writer->write(value); }, *record));
    }
  }
  ASSERT_GT(step, 0u);
  const auto executor = demo_executor(backend);
  record::ReplayReport report;
  ASSERT_TRUE(
      record::replay(*value_of(record::RecordingReader::open(changed)), *executor, &report));
  EXPECT_EQ(report.num_different, 1);
  ASSERT_TRUE(report.first);
  EXPECT_EQ(report.first->step, step);
  EXPECT_EQ(report.first->seq, 1);
}

}  // namespace
}  // namespace rudder::metamorphic
