// FakeExecutor: an Executor without a model, for tests of the serving side. It keeps a fake KV
// memory (which token is at which offset of which block, after which prefix) and chooses each next
// token from a hash of every token that it finds there through the slot's block table. So a block
// that is shared, freed or overwritten wrongly changes tokens, and most faults are also recorded as
// a violation in words. Called by one thread.
//
// Steps run in launch order, each at some point between its launch and its collect that is drawn
// from the options' seed.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rudder/base/philox.h"
#include "rudder/step/executor.h"
#include "rudder/testing/virtual_clock.h"

namespace rudder::testing {

struct FakeOptions {
  step::Capacity capacity = {.num_slots = 64,
                             .num_blocks = 256,
                             .block_size = 16,
                             .max_tokens_per_step = 512,
                             .max_seq_len = 1024,
                             .vocab_size = 1000,
                             .max_in_flight = 2};
  uint64_t seed = 1;  // of the moments at which steps run

  // Duration of a step. With a clock, ready() is true once the step's end has passed and collect()
  // moves the clock there. Without one, collect() sleeps when sleep_us is not 0.
  VirtualClock* clock = nullptr;
  int64_t step_us = 1000;
  int64_t token_us = 10;
  int64_t sleep_us = 0;

  // Faults. True for a token to be sampled (sampling seed, position) that comes out as NaN.
  std::function<bool(uint64_t seed, int32_t position)> numerical;
  step::StepId fail_launch_at = 0;   // 0 = never; from then on the executor is dead
  step::StepId fail_collect_at = 0;  // likewise
};

// What a lone request gets from a FakeExecutor: the reference of every metamorphic test.
struct ExpectedRun {
  std::vector<int32_t> tokens;
  step::RowEnd end = step::RowEnd::kNone;
};
ExpectedRun expected_run(const std::vector<int32_t>& prompt, const step::SamplingParams& sampling,
                         int32_t max_len, const FakeOptions& options);

class FakeExecutor final : public step::Executor {
 public:
  explicit FakeExecutor(FakeOptions options);

  step::Capacity capacity() const override { return options_.capacity; }
  Result<step::Ticket> launch(std::shared_ptr<const step::StepPlan> plan) override;
  Result<step::StepResult> collect(step::Ticket ticket) override;
  bool ready(step::Ticket ticket) override;

  // Breaches of docs/contracts/step.md seen so far, in words; at most 100 are kept.
  const std::vector<std::string>& violations() const { return violations_; }
  uint64_t computed_tokens() const { return computed_tokens_; }  // KV entries written
  uint64_t masked_rows() const { return masked_rows_; }

 private:
  struct Cell {
    int32_t token = -1;
    int32_t position = -1;
    uint64_t prefix_hash = 0;  // of all tokens up to and with this one
    bool poisoned = false;     // written by a row that ended kNumerical
  };
  struct Slot {
    uint32_t generation = 0;
    bool open = false;
    bool ended = false;
    bool has_carry = false;
    int32_t carry = 0;
    int32_t kv_len = 0;
    int32_t num_output = 0;
    int32_t max_len = 0;
    step::SamplingParams sampling;
    std::vector<int32_t> blocks;
    std::vector<int32_t> history;
    int32_t history_prompt_len = 0;
  };
  // What launch knows of a slot, ahead of the steps that have not run yet.
  struct LaunchedSlot {
    step::StepId last_step = 0;
    std::vector<int32_t> blocks;
  };
  struct InFlight {
    std::shared_ptr<const step::StepPlan> plan;
    bool ran = false;
    int64_t ends_at_us = 0;
    step::StepResult result;
  };

  void violation(std::string text);
  void check_launch(const step::StepPlan& plan);
  void run_until(step::StepId last);
  void run(InFlight& step);
  void open_slot(const step::SlotEdit& edit);
  step::SeqResult run_row(const step::StepPlan& plan, const step::SeqWork& work);
  bool write_row(const step::StepPlan& plan, const step::SeqWork& work, Slot& slot);
  void sample_row(Slot& slot, const step::SeqWork& work, uint64_t prefix_hash,
                  step::SeqResult* result);
  // Hash of the first `len` tokens found through the slot's table; false when a cell is not what
  // its place says it should be.
  bool read_context(const Slot& slot, int32_t len, uint64_t* prefix_hash);
  Cell* cell(const Slot& slot, int32_t position);
  bool draw();  // a coin of the timing seed

  FakeOptions options_;
  std::vector<Cell> memory_;
  std::vector<Slot> slots_;
  std::vector<LaunchedSlot> launched_;
  std::vector<step::StepId> block_last_step_;  // last launched step whose rows name the block
  std::deque<InFlight> in_flight_;
  step::StepId last_launched_ = 0;
  step::StepId last_collected_ = 0;
  int64_t busy_until_us_ = 0;
  uint64_t draws_ = 0;
  bool dead_ = false;
  std::vector<std::string> violations_;
  uint64_t computed_tokens_ = 0;
  uint64_t masked_rows_ = 0;
};

}  // namespace rudder::testing
