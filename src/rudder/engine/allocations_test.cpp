// What the engine thread allocates in its steady loop: sequences decode, nothing comes and nothing
// ends. Memory that is allocated a turn is named here with its bound; there is no other.
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
    capacity.num_blocks = 256;
    capacity.block_size = 16;
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
Steady run_steadily(int num_sequences) {
  constexpr int kWarmUpTurns = 24;
  constexpr int kTurns = 64;
  auto core = EngineCore::create({.executor = std::make_unique<UncountedExecutor>(),
                                  .tokenizer = testing::tiny_tokenizer(),
                                  .clock = std::make_shared<testing::VirtualClock>(),
                                  .model_identity = "test",
                                  .eos_ids = {testing::kTinyEos}},
                                 {}, {});
  EXPECT_TRUE(core) << core.error().to_string();
  Steady steady;
  for (int i = 0; i < num_sequences; ++i) {
    RequestParams params;
    params.prompt = {2, 3, 4, 5, 2};
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

// A turn: the plan, its sequences and its tokens. A token: the scheduler's output and the event's
// list. The rest is amortised: a block of 16 tokens, and the chunks of the queues of steps.
TEST(EngineAllocations, ASteadyTurnAllocatesItsPlanAndEachTokenItsWayOut) {
  for (const int num_sequences : {1, 4}) {
    const Steady steady = run_steadily(num_sequences);
    EXPECT_EQ(steady.steps, 64u);
    const uint64_t named = 3 * steady.steps + 2 * steady.tokens;
    const uint64_t amortised = steady.steps / 4 + steady.tokens / 4;
    EXPECT_LE(steady.allocations, named + amortised) << num_sequences << " sequences";
  }
}

}  // namespace
}  // namespace rudder::engine
