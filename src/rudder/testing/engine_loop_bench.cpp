// What the serving side costs a token: EngineCore, scheduler, KV bookkeeping and detokenizer over
// an executor that computes nothing; and what the masks of a full step cost by threads, each
// matcher as slow as a grammar's may be. Prints a line each; not a test.
#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "rudder/engine/engine_core.h"
#include "rudder/engine/token_masks.h"
#include "rudder/testing/scripted_executor.h"
#include "rudder/testing/tiny_tokenizer.h"

namespace rudder::testing {
namespace {

constexpr int32_t kSequences = 64, kPromptTokens = 128, kOutputTokens = 1024, kRounds = 10;

// Passes everything on and counts the time spent below, which is not the engine's.
class TimedExecutor final : public step::Executor {
 public:
  TimedExecutor(std::unique_ptr<step::Executor> below, int64_t* ns)
      : below_(std::move(below)), ns_(ns) {}

  step::Capacity capacity() const override { return below_->capacity(); }
  Result<step::Ticket> launch(std::shared_ptr<const step::StepPlan> plan) override {
    const Timer timer(ns_);
    return below_->launch(std::move(plan));
  }
  Result<void> supply(step::Ticket ticket, std::span<const uint32_t> masks) override {
    const Timer timer(ns_);
    return below_->supply(ticket, masks);
  }
  Result<step::StepResult> collect(step::Ticket ticket) override {
    const Timer timer(ns_);
    return below_->collect(ticket);
  }
  bool ready(step::Ticket ticket) override { return below_->ready(ticket); }

 private:
  using clock = std::chrono::steady_clock;
  struct Timer {
    explicit Timer(int64_t* total) : ns(total) {}
    ~Timer() { *ns += (clock::now() - start).count(); }
    int64_t* ns;
    clock::time_point start = clock::now();
  };

  std::unique_ptr<step::Executor> below_;
  int64_t* ns_;
};

int run() {
  step::Capacity capacity;
  capacity.num_slots = kSequences;
  capacity.block_size = 16;
  capacity.num_blocks = kSequences * (kPromptTokens + kOutputTokens) / 16;
  capacity.max_tokens_per_step = 8192;
  capacity.max_seq_len = kPromptTokens + kOutputTokens;
  capacity.vocab_size = kTinyVocab;
  int64_t below_ns = 0;
  auto executor = std::make_unique<TimedExecutor>(
      std::make_unique<ScriptedExecutor>(std::vector<int32_t>{2, 3, 4, 22, 5}, capacity),
      &below_ns);
  engine::EngineSettings settings;
  settings.max_num_seqs = kSequences;
  auto core = engine::EngineCore::create({.executor = std::move(executor),
                                          .tokenizer = tiny_tokenizer(),
                                          .clock = std::make_shared<SteadyClock>(),
                                          .model_identity = "bench",
                                          .eos_ids = {kTinyEos}},
                                         settings, {});
  if (!core) return 1;
  uint64_t tokens = 0, bytes = 0;
  const auto start = std::chrono::steady_clock::now();
  for (int32_t round = 0; round < kRounds; ++round) {
    for (int32_t i = 0; i < kSequences; ++i) {
      engine::RequestParams params;
      params.prompt.assign(kPromptTokens, 2 + i % 20);
      params.max_tokens = kOutputTokens;
      params.stop = {"never"};
      auto request = engine::validate_request(std::move(params), (*core)->limits());
      if (!request) return 1;
      (void)(*core)->submit(std::move(*request), [&](engine::Event&& event) {
        tokens += event.tokens.size();
        bytes += event.text.size();
      });
    }
    while ((*core)->step()) {
    }
  }
  const double total_ns = static_cast<double>((std::chrono::steady_clock::now() - start).count());
  const double each = 1.0 / static_cast<double>(tokens);
  fmt::print(
      "{} sequences at once, {} tokens, {} bytes: {:.3f} us a token, of it {:.3f} in the "
      "executor; {} steps\n",
      kSequences, tokens, bytes, total_ns * each * 1e-3,
      static_cast<double>(below_ns) * each * 1e-3, (*core)->stats().steps);
  return tokens == uint64_t{kRounds} * kSequences * kOutputTokens ? 0 : 1;
}

class SlowMatcher final : public constraint::Matcher {
 public:
  Result<void> restrict(std::span<uint32_t>) override {
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(50);
    while (std::chrono::steady_clock::now() < end) {
    }
    return {};
  }
  Result<void> advance(int32_t) override { return {}; }
  void begin_trial() override {}
  void end_trial() override {}
};

class SlowConstraint final : public constraint::Constraint {
 public:
  std::unique_ptr<constraint::Matcher> start() const override {
    return std::make_unique<SlowMatcher>();
  }
};

void time_masks(int32_t num_threads, size_t num_rows) {
  constexpr int32_t kVocab = 151'936;
  constexpr int kSteps = 20;
  engine::RequestParams params;
  const std::shared_ptr<const constraint::Constraint> slow = std::make_shared<SlowConstraint>();
  std::vector<engine::ChoiceConstraint> choices;
  choices.reserve(num_rows);
  for (size_t i = 0; i < num_rows; ++i) {
    choices.emplace_back(params, std::vector{slow});
  }
  std::vector<engine::MaskMaker::Job> rows(num_rows);
  for (size_t i = 0; i < num_rows; ++i) rows[i].constraint = &choices[i];
  engine::MaskMaker maker(kVocab, num_threads);
  maker.make(rows);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kSteps; ++i) maker.make(rows);
  const std::chrono::duration<double, std::milli> total = std::chrono::steady_clock::now() - start;
  fmt::print("{} masks of {} tokens at 50 us, {} threads: {:.2f} ms\n", num_rows, kVocab,
             num_threads, total.count() / kSteps);
}

}  // namespace
}  // namespace rudder::testing

int main() {
  for (const int32_t num_threads : {1, 2, 4}) {
    for (const size_t num_rows : {32, 256}) rudder::testing::time_masks(num_threads, num_rows);
  }
  return rudder::testing::run();
}
