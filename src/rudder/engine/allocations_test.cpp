// What the engine thread allocates in its steady loop, where sequences decode, nothing comes and
// nothing ends: nothing, with steering, masks and captures too. Not counted is what the executor
// allocates for its results, captured rows among them, what the dispatcher of captures does with
// those (a message to its thread each step), and what the sink does with an event. An event takes
// memory where a step gives a sequence several tokens or more text than a short string holds,
// log-probabilities or captured rows. What a compiled grammar takes for a mask is its own. A block
// of the prefix cache that a steered sequence fills keeps what steered it, in memory of its own.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rudder/engine/engine_core.h"
#include "rudder/testing/fake_captures.h"
#include "rudder/testing/fake_executor.h"
#include "rudder/testing/named_grammars.h"
#include "rudder/testing/scripted_executor.h"
#include "rudder/testing/tiny_tokenizer.h"
#include "rudder/testing/virtual_clock.h"

namespace {

thread_local bool is_counting = false;
thread_local uint64_t num_allocations = 0;

void* counted(size_t bytes) {
  if (is_counting) ++num_allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(size_t bytes) {
  return counted(bytes);
}
void* operator new[](size_t bytes) {
  return counted(bytes);
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  if (is_counting) ++num_allocations;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  if (is_counting) ++num_allocations;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, size_t) noexcept {
  std::free(memory);
}

namespace rudder::engine {
namespace {

struct Pause {
  Pause() : was_counting(std::exchange(is_counting, false)) {}
  ~Pause() { is_counting = was_counting; }
  const bool was_counting;
};

// What is inside it, and what it gives, is not the engine's.
class UncountedExecutor final : public step::Executor {
 public:
  explicit UncountedExecutor(std::unique_ptr<step::Executor> inner) : inner_(std::move(inner)) {}

  step::Capacity capacity() const override { return inner_->capacity(); }
  Result<step::Ticket> launch(std::shared_ptr<const step::StepPlan> plan) override {
    const Pause pause;
    return inner_->launch(std::move(plan));
  }
  Result<void> supply(step::Ticket ticket, std::span<const uint32_t> masks) override {
    const Pause pause;
    return inner_->supply(ticket, masks);
  }
  Result<step::StepResult> collect(step::Ticket ticket) override {
    const Pause pause;
    return inner_->collect(ticket);
  }
  bool ready(step::Ticket ticket) override {
    const Pause pause;
    return inner_->ready(ticket);
  }

 private:
  const std::unique_ptr<step::Executor> inner_;
};

class UncountedCaptures final : public steer::capture::Dispatcher {
 public:
  explicit UncountedCaptures(const tap::Geometry& geometry) : inner_(geometry) {}

  Result<std::shared_ptr<const steer::capture::CaptureSpec>> spec(
      const boost::json::value* field, std::optional<steer::capture::StopWhen> stop_when) override {
    return inner_.spec(field, std::move(stop_when));
  }
  std::shared_ptr<const steer::capture::CaptureSpec> find(
      steer::capture::SpecId id) const override {
    return inner_.find(id);
  }
  steer::capture::CaptureId begin(steer::capture::CaptureRequest request) override {
    return inner_.begin(std::move(request));
  }
  void push(std::shared_ptr<const tap::CapturedRows> rows,
            std::span<const steer::capture::CaptureId> by_seq) override {
    const Pause pause;
    inner_.push(std::move(rows), by_seq);
  }
  void end(steer::capture::CaptureId id) override { inner_.end(id); }
  void cancel(steer::capture::CaptureId id) override { inner_.cancel(id); }
  steer::capture::CaptureStats stats() const override { return inner_.stats(); }

  void add(std::shared_ptr<const steer::capture::CaptureSpec> spec) { inner_.add(std::move(spec)); }

 private:
  testing::FakeCaptures inner_;
};

// Allows letters, and forgets what was sampled: a constraint that takes no
// memory of its own.
class Letters final : public constraint::Constraint {
 public:
  std::unique_ptr<constraint::Matcher> start() const override {
    return std::make_unique<Matcher>();
  }

 private:
  class Matcher final : public constraint::Matcher {
   public:
    Result<void> restrict(std::span<uint32_t> words) override {
      words[0] &= 0xfffffU;
      words[1] = 0;
      return {};
    }
    Result<void> advance(int32_t) override { return {}; }
    void begin_trial() override {}
    void end_trial() override {}
  };
};

tap::Geometry two_layers() {
  return {
      .num_layers = 2,
      .hidden = 8,
      .mlp_width = {16, 16},
      .sites = {tap::dense_sites_but(tap::Site::kAttnZ), tap::dense_sites_but(tap::Site::kAttnZ)},
      .dtype = tensor::DType::kBF16};
}

// Blocks as large as a server's, and enough of them.
step::Capacity roomy(step::Capacity capacity) {
  capacity.num_blocks = 512;
  capacity.block_size = 16;
  capacity.max_seq_len = 1024;
  capacity.vocab_size = testing::kTinyVocab;
  return capacity;
}

// One that steers and captures, and samples under masks.
std::unique_ptr<step::Executor> fake_executor() {
  testing::FakeOptions options;
  options.capacity = roomy(options.capacity);
  options.capacity.geometry = two_layers();
  options.capacity.taps = {.num_rows = 8,
                           .num_ops = 8,
                           .num_floats = 8 * tap::kVectorAlign,
                           .num_capture_sets = 2,
                           .capture_elements = 64 * tap::kCaptureAlign};
  return std::make_unique<testing::FakeExecutor>(options);
}

std::unique_ptr<step::Executor> scripted_executor() {
  return std::make_unique<testing::ScriptedExecutor>(
      std::vector<int32_t>{2, 3, 4, 5}, roomy(testing::ScriptedExecutor::default_capacity()));
}

// An engine, and what its requests ask for.
struct Trial {
  explicit Trial(std::unique_ptr<step::Executor> executor, int32_t mask_threads) {
    auto dispatcher = std::make_unique<UncountedCaptures>(executor->capacity().geometry);
    captures = dispatcher.get();
    EngineSettings settings;
    settings.mask_threads = mask_threads;
    auto made =
        EngineCore::create({.executor = std::make_unique<UncountedExecutor>(std::move(executor)),
                            .tokenizer = testing::tiny_tokenizer(),
                            .clock = std::make_shared<testing::VirtualClock>(),
                            .model_identity = "test",
                            .eos_ids = {testing::kTinyEos},
                            .captures = std::move(dispatcher),
                            .grammars = std::make_unique<testing::NamedGrammars>()},
                           settings, {});
    EXPECT_TRUE(made) << made.error().to_string();
    core = std::move(*made);
  }

  // Every sequence writes a row of layer 1: a consumer gets it, or it is read
  // for `stop_when`.
  void capture(bool stops) {
    auto set = std::make_shared<tap::CaptureSet>();
    set->points = {{.point = {1, tap::Site::kResidPost}}};
    auto spec = std::make_shared<steer::capture::CaptureSpec>();
    spec->id = steer::capture::SpecId(7);
    spec->set = set;
    if (stops) {
      auto vector = std::make_shared<float[]>(8);
      vector[0] = 1;
      spec->stop_when = {.watch = {.point = set->points[0], .vector = {vector, 0, 8}},
                         .above = std::numeric_limits<double>::infinity()};
      spec->stop_width = 8;
    }
    captures->add(spec);
    params.capture = spec->id;
    params.capture_delivery.results = !stops;
    params.taps.captured = {{0, tap::kNoEnd}};
  }

  UncountedCaptures* captures = nullptr;
  std::unique_ptr<EngineCore> core;
  RequestParams params;
  std::shared_ptr<const tap::SequenceTaps> kept;
};

struct Steady {
  uint64_t allocations = 0;
  uint64_t tokens = 0;
  uint64_t steps = 0;
};

// `num_sequences` decode; behind the first turns, which fill what is kept, the
// next are counted.
Steady run_steadily(int num_sequences, Trial& trial) {
  constexpr int kWarmUpTurns = 40;
  constexpr int kTurns = 700;
  EngineCore& core = *trial.core;
  Steady steady;
  for (int i = 0; i < num_sequences; ++i) {
    RequestParams params = trial.params;
    params.prompt.assign(static_cast<size_t>(5 + 3 * i), 2);
    params.max_tokens = kWarmUpTurns + kTurns + 10;
    params.seed = 7 + static_cast<uint64_t>(i);
    params.client_id = "r" + std::to_string(i);
    auto request = validate_request(std::move(params), core.limits());
    EXPECT_TRUE(request) << request.error().to_string();
    EXPECT_TRUE(core.submit(std::move(*request),
                            [&](Event&& event) { steady.tokens += event.tokens.size(); }));
  }
  for (int turn = 0; turn < kWarmUpTurns; ++turn) core.step();
  steady.tokens = 0;
  num_allocations = 0;
  const uint64_t steps = core.stats().steps;
  is_counting = true;
  for (int turn = 0; turn < kTurns; ++turn) core.step();
  is_counting = false;
  steady.allocations = num_allocations;
  steady.steps = core.stats().steps - steps;
  EXPECT_EQ(steady.tokens, steady.steps * static_cast<uint64_t>(num_sequences));
  core.end_all();
  return steady;
}

// `prepare` says what each request asks for; so many blocks of each sequence have memory of their
// own.
void expect_no_allocations(const std::function<std::unique_ptr<step::Executor>()>& executor,
                           const std::function<void(Trial&)>& prepare, uint64_t blocks_apart = 0,
                           int32_t mask_threads = 1) {
  for (const int num_sequences : {1, 4, 7}) {
    Trial trial(executor(), mask_threads);
    prepare(trial);
    const Steady steady = run_steadily(num_sequences, trial);
    EXPECT_EQ(steady.steps, 700u);
    EXPECT_LE(steady.allocations, blocks_apart * static_cast<uint64_t>(num_sequences))
        << num_sequences << " sequences";
  }
}

TEST(EngineAllocations, ASteadyTurnAllocatesNothing) {
  expect_no_allocations(scripted_executor, [](Trial&) {});
  // For what is looked at on the host alone.
  expect_no_allocations(scripted_executor, [](Trial& trial) {
    trial.params.stop = {"never", "sampled"};
    trial.params.sampling.min_tokens = 100;
    trial.params.repetition = {.max_pattern = 8, .min_pattern = 8, .min_count = 1000};
  });
}

TEST(EngineAllocations, ASteeredTurnAllocatesForNewBlocksAlone) {
  expect_no_allocations(
      fake_executor,
      [](Trial& trial) {
        tap::SequenceTaps taps;
        int32_t begin = 0;
        for (const uint64_t number : {1, 2}) {
          taps.segments.push_back(
              {begin,
               {number, 1},
               testing::fake_program(number, testing::FakeProgramKind::kPlain)});
          begin = 3;
        }
        trial.kept = *trial.core->programs().keep(std::move(taps));
        trial.params.taps = tap::spec_of(*trial.kept);
        trial.params.ignore_eos = true;
      },
      700 / 16 + 1);
}

// Where one thread writes the masks, and where several do, as on a machine with more cores.
TEST(EngineAllocations, ATurnUnderMasksAllocatesNothing) {
  for (const bool ends_are_banned : {false, true}) {
    const auto prepare = [&](Trial& trial) {
      trial.params.constraints = {testing::name_constraint(std::make_shared<Letters>())};
      trial.params.ignore_eos = !ends_are_banned;
      if (ends_are_banned) trial.params.sampling.min_tokens = 750;
    };
    for (const int32_t mask_threads : {1, 4}) {
      expect_no_allocations(fake_executor, prepare, 0, mask_threads);
    }
  }
}

TEST(EngineAllocations, ATurnThatCapturesAllocatesNothing) {
  for (const bool stops : {false, true}) {
    expect_no_allocations(fake_executor, [&](Trial& trial) {
      trial.capture(stops);
      trial.params.ignore_eos = true;
    });
  }
}

}  // namespace
}  // namespace rudder::engine
