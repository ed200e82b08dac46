// What the engine thread allocates in its steady loop, where sequences decode, nothing comes and
// nothing ends: nothing. Not counted is what the executor allocates for its results, and what the
// sink does with an event. An event takes memory where a step gives a sequence several tokens or
// more text than a short string holds, log-probabilities or captured rows.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "rudder/engine/engine_core.h"
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

// What is inside it, and what it gives, is not the engine's.
class UncountedExecutor final : public step::Executor {
 public:
  step::Capacity capacity() const override { return inner_.capacity(); }
  Result<step::Ticket> launch(std::shared_ptr<const step::StepPlan> plan) override {
    const Pause pause;
    return inner_.launch(std::move(plan));
  }
  Result<void> supply(step::Ticket ticket, std::span<const uint32_t> masks) override {
    const Pause pause;
    return inner_.supply(ticket, masks);
  }
  Result<step::StepResult> collect(step::Ticket ticket) override {
    const Pause pause;
    return inner_.collect(ticket);
  }
  bool ready(step::Ticket ticket) override { return inner_.ready(ticket); }

 private:
  struct Pause {
    Pause() : was_counting(std::exchange(is_counting, false)) {}
    ~Pause() { is_counting = was_counting; }
    const bool was_counting;
  };

  // Blocks as large as a server's, and enough of them.
  static step::Capacity roomy() {
    step::Capacity capacity = testing::ScriptedExecutor::default_capacity();
    capacity.num_blocks = 512;
    capacity.block_size = 16;
    capacity.max_seq_len = 1024;
    return capacity;
  }

  testing::ScriptedExecutor inner_{{2, 3, 4, 5}, roomy()};
};

struct Steady {
  uint64_t allocations = 0;
  uint64_t tokens = 0;
  uint64_t steps = 0;
};

// `num_sequences` decode; behind the first turns, which fill what is kept, the next are counted.
Steady run_steadily(int num_sequences, const RequestParams& asked) {
  constexpr int kWarmUpTurns = 40;
  constexpr int kTurns = 700;
  auto core = EngineCore::create({.executor = std::make_unique<UncountedExecutor>(),
                                  .tokenizer = testing::tiny_tokenizer(),
                                  .clock = std::make_shared<testing::VirtualClock>(),
                                  .model_identity = "test",
                                  .eos_ids = {testing::kTinyEos}},
                                 {}, {});
  EXPECT_TRUE(core) << core.error().to_string();
  Steady steady;
  for (int i = 0; i < num_sequences; ++i) {
    RequestParams params = asked;
    params.prompt.assign(static_cast<size_t>(5 + 3 * i), 2);
    params.max_tokens = kWarmUpTurns + kTurns + 10;
    params.seed = 7;
    auto request = validate_request(std::move(params), (*core)->limits());
    EXPECT_TRUE(request) << request.error().to_string();
    EXPECT_TRUE((*core)->submit(std::move(*request),
                                [&](Event&& event) { steady.tokens += event.tokens.size(); }));
  }
  for (int turn = 0; turn < kWarmUpTurns; ++turn) (*core)->step();
  steady.tokens = 0;
  num_allocations = 0;
  const uint64_t steps = (*core)->stats().steps;
  is_counting = true;
  for (int turn = 0; turn < kTurns; ++turn) (*core)->step();
  is_counting = false;
  steady.allocations = num_allocations;
  steady.steps = (*core)->stats().steps - steps;
  EXPECT_EQ(steady.tokens, steady.steps * static_cast<uint64_t>(num_sequences));
  (*core)->end_all();
  return steady;
}

TEST(EngineAllocations, ASteadyTurnAllocatesNothing) {
  RequestParams plain;
  RequestParams watched;  // for what is looked at on the host alone
  watched.stop = {"never", "sampled"};
  watched.sampling.min_tokens = 100;
  watched.repetition = {.max_pattern = 8, .min_pattern = 8, .min_count = 1000};
  for (const RequestParams& params : {plain, watched}) {
    for (const int num_sequences : {1, 4, 7}) {
      const Steady steady = run_steadily(num_sequences, params);
      EXPECT_EQ(steady.steps, 700u);
      EXPECT_EQ(steady.allocations, 0u) << num_sequences << " sequences";
    }
  }
}

}  // namespace
}  // namespace rudder::engine
