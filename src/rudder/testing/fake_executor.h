// FakeExecutor: an Executor without a model, for tests of the serving side. It keeps a fake KV
// memory: for each offset of each block, the token that was written there, the prefix before it,
// the steering program that it ran, and its KV group. It chooses the next token of a sequence from
// a hash of all tokens that it finds through the block tables of the sequence's slot; in a group
// with a window it reads back as far as the window reaches. Where sequences have states, it keeps
// for each which tokens it is of. So the tokens change when a block is
// shared, freed or overwritten by mistake. It also records, in words, each breach of the step
// contract that it sees. One thread calls it.
//
// It runs the iterations of steps in launch order. Each runs at a moment between the launch of its
// step and its own collect, drawn from the seed of the options. A plan that breaks the contract by
// itself is not run: the executor dies.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rudder/step/executor.h"
#include "rudder/testing/fake_model.h"
#include "rudder/testing/fake_proposer.h"
#include "rudder/testing/fake_taps.h"
#include "rudder/testing/virtual_clock.h"

namespace rudder::testing {

// Cells of KV and states as FakeExecutor keeps them, and what lies in files of them.
struct FakeCell {
  int32_t token = -1;
  int32_t row = -1;  // the token whose rows lie beside it, for what guesses
  int32_t position = -1;
  int32_t group = -1;
  uint64_t before_hash = 0;  // of all tokens before this one, when it was written
  uint64_t prefix_hash = 0;  // of those and this one, with the program that it ran
  bool poisoned = false;     // written by a sequence that ended kNumerical
};
// What stands in for the object of a sequence: which tokens it is of.
struct FakeState {
  int32_t len = 0;
  uint64_t hash = kEmptyPrefixHash;  // of all of them
  bool poisoned = false;

  bool operator==(const FakeState&) const = default;
};
struct FakeRecord {
  step::RecordKey key;
  step::RecordParts parts = 0;
  std::vector<std::vector<FakeCell>> cells;  // by group
  FakeState state;
  bool is_bad = false;  // as its checksum says
};
struct FakeFiles {
  std::map<std::pair<uint64_t, uint64_t>, FakeRecord> records;
};

struct FakeOptions {
  step::Capacity capacity = {.num_slots = 64,
                             .num_blocks = 256,
                             .block_size = 16,
                             .max_tokens_per_step = 512,
                             .max_seq_len = 1024,
                             .vocab_size = 1000,
                             .max_in_flight = 2};
  uint64_t seed = 1;  // of the moments at which steps run

  // Duration of an iteration. With a clock, ready() is true once its end has passed and collect()
  // moves the clock there. Without one, collect() sleeps sleep_us.
  VirtualClock* clock = nullptr;
  int64_t step_us = 1000;
  int64_t token_us = 10;
  int64_t sleep_us = 0;
  std::function<int64_t(const step::StepPlan&)> duration_us;  // instead of the two above, if set

  uint64_t moments = 0;  // of a rank: its steps run at other moments than those of other ranks
  // Of a pipeline: what the scheduler divides its decodes into (SchedSettings::num_cohorts).
  int32_t num_cohorts = 1;

  // Where the capacity has slow copies: each is done at most so many steps behind its own.
  int32_t copy_steps = 0;

  // Where the capacity has tiers: each copy of a record is done at most so many steps behind its
  // own, and one in so many records goes bad (0: none), of files also one in so many writes fails.
  int32_t record_steps = 0;
  int32_t bad_record_in = 0;
  std::shared_ptr<FakeFiles> files = {};  // what lies in them; null: of its own

  bool loses_rows = false;  // captured rows find no buffer

  // Where the capacity guesses: how long each of the tokens of a step's longest guess takes, and
  // how often a guess is right behind right ones; below 0: draws of every kind.
  int64_t guess_us = 0;
  double guess_odds = -1;
  // The guesses of the first so many steps take so much longer, for what is set up in them. Their
  // time is told as not known, or as what it is.
  int64_t num_setups = 0;
  int64_t setup_us = 0;
  bool knows_setups = true;

  NumericalFault numerical;
  step::StepId fail_launch_at = 0;   // 0 = never; from this step on the executor is dead
  step::StepId fail_collect_at = 0;  // likewise
  step::StepId differ_at = 0;        // 0 = never; from it on one token is another than sampled
};

class FakeExecutor final : public step::Executor {
 public:
  explicit FakeExecutor(FakeOptions options);

  step::Capacity capacity() const override { return options_.capacity; }
  std::vector<step::StoredRecord> take_stored() override;
  Result<step::Ticket> launch(std::shared_ptr<const step::StepPlan> plan) override;
  Result<void> supply(step::Ticket ticket, std::span<const uint32_t> masks) override;
  Result<step::StepResult> collect(step::Ticket ticket) override;
  bool ready(step::Ticket ticket) override;

  // Breaches of docs/contracts/step.md seen so far, in words; at most 100 are kept.
  const std::vector<std::string>& violations() const { return violations_; }
  uint64_t computed_tokens() const { return computed_tokens_; }  // KV entries written
  uint64_t masked_results() const { return masked_results_; }
  // Whether it has told a token that was not sampled (differ_at).
  bool has_differed() const { return has_differed_; }
  // The most carried tokens that a step launched since the last call begins with.
  int64_t take_most_decodes() { return std::exchange(most_decodes_, 0); }
  // Slots opened on a prefix of which a window no longer reaches the first blocks.
  uint64_t windowed_hits() const { return windowed_hits_; }

 private:
  using Cell = FakeCell;
  using State = FakeState;
  // State as of the last step that ran.
  struct Reading {  // of the last controlled token
    int32_t position = -1;
    uint64_t value = 0;
  };
  struct Slot {
    bool ended = false;
    std::optional<int32_t> carry;
    int32_t kv_len = 0;
    int32_t prompt_len = 0;
    int32_t num_output = 0;
    int32_t max_len = 0;
    uint64_t latch = 0;
    Reading reading;
    step::SamplingParams sampling;
    std::vector<step::GroupTable> blocks;  // by group
    std::vector<int32_t> history;          // where the sampling needs it
    int32_t history_prompt_len = 0;
    std::vector<int32_t> guess;  // where they are kept
    step::StateId state = step::kNoState;
    // As its object was before the part of a step that had drafts: where the next part begins, it
    // still is, and what was accepted is replayed.
    std::optional<State> replayed;
  };
  // State as of the last step launched.
  struct LaunchedSlot {
    uint32_t generation = 0;
    int32_t max_len = 0;
    step::StepId last_step = 0;
    int32_t num_guess = 0;                 // asked for by the last step that samples
    bool has_history = false;              // it was opened with its tokens
    std::vector<step::GroupTable> blocks;  // by group
    step::StateId state = step::kNoState;
  };
  struct StateUse {
    step::StepId last_use = 0;  // the last launched step that reads or writes it
    step::StepId last_write = 0;
    int64_t last_copy = 0;     // the slow copy, counted from 1, that reads or writes it
    int64_t last_copy_to = 0;  // and that writes it
    int32_t records = 0;       // copies of records that read or write it
  };
  struct SlowCopy {
    step::ObjectCopy copy;
    step::StepId begun = 0;  // the step whose plan has it
    step::StepId due = 0;    // it is done when this step is, or one that waits for it
  };
  struct BlockUse {
    step::StepId last_use = 0;  // the last launched step with a sequence that reads or writes it
    step::StepId last_write = 0;
    int32_t last_write_iteration = 0;
    int32_t records = 0;     // copies of records that read or write it, as far as results tell
    int32_t records_to = 0;  // of these, those that write it
  };
  struct RecordWork {
    step::RecordCopy copy;
    step::StepId due = 0;
  };
  struct InFlight {
    std::shared_ptr<const step::StepPlan> plan;
    int64_t begins_at_us = 0;
    int64_t device_us = 0;  // of an iteration
    int64_t guess_us = 0;   // behind the last
    int64_t told_guess_us = 0;
    int32_t collected = 0;                  // iterations
    std::vector<step::StepResult> results;  // of the iterations that have run
    // By sequence: drafts whose results were not collected when it was launched. It may begin so
    // far before its kv_len.
    std::vector<int32_t> unsure = {};
    std::vector<uint32_t> masks = {};  // of its constrained sequences, once supplied

    bool awaits_masks() const { return masks.empty() && plan->num_masks() > 0; }
    int64_t ends_at_us() const { return begins_at_us + (collected + 1) * device_us + guess_us; }
  };

  void violation(std::string text);
  bool check_launch(const step::StepPlan& plan);
  void check_edit(const step::StepPlan& plan, const step::SlotEdit& edit);
  bool check_group_count(const step::StepPlan& plan, size_t num_tables);
  void append_blocks(const step::StepPlan& plan, const step::SeqWork& work, LaunchedSlot& slot);
  void note_use(const step::StepPlan& plan, const step::SeqWork& work, const LaunchedSlot& slot,
                int64_t end);
  bool is_writing(const BlockUse& use) const;  // some iteration that is not collected
  bool is_state(const step::StepPlan& plan, const step::ObjectRef& object);
  void check_state(const step::StepPlan& plan, const step::SlotEdit& edit);
  void check_copies_before(const step::StepPlan& plan);
  void check_copies_after(const step::StepPlan& plan);
  void check_work(const step::StepPlan& plan, const step::SeqWork& work);
  void check_drafts(const step::StepPlan& plan, const step::SeqWork& work);
  void check_tree(const step::StepPlan& plan, const step::SeqWork& work);
  void check_takes_guess(const step::StepPlan& plan, const step::SeqWork& work);
  void check_guess(const step::StepPlan& plan, const step::SeqWork& work, const LaunchedSlot& slot);
  int32_t drafts_in_flight(step::SlotId slot, uint32_t generation) const;
  void run_some();
  void run(InFlight& step);  // its next iteration
  void open_slot(const step::SlotEdit& edit);
  step::StepPlan plan_of_iteration(const InFlight& step, int32_t iteration) const;
  step::SeqResult run_sequence(const step::StepPlan& plan, int32_t index,
                               std::span<const uint32_t> masks);
  void run_tokens(const step::StepPlan& plan, int32_t index, Slot& slot, uint64_t prefix_hash,
                  step::SeqResult* result);
  void sample_sequence(const step::StepPlan& plan, const step::SeqWork& work, Slot& slot,
                       std::span<const uint32_t> masks, step::SeqResult* result);
  void copy_states(std::span<const step::ObjectCopy> copies);
  void begin_slow_copies(const step::StepPlan& plan);
  void end_slow_copies(const step::StepPlan& plan);
  bool is_copied(const StateUse& use) const {
    return use.last_copy > copies_told_ || use.records > 0;
  }
  void check_records(const step::StepPlan& plan);
  void count_record(const step::RecordCopy& copy, int32_t by);
  void begin_records(const step::StepPlan& plan);
  void end_records(const step::StepPlan& plan, step::StepResult* result);
  step::RecordDone run_record(const step::RecordCopy& copy);
  bool take_record(const step::RecordCopy& copy, const FakeRecord& record);
  void advance_state(const step::StepPlan& plan, const step::SeqWork& work, Slot& slot,
                     uint64_t context_hash);
  // Hash of the tokens found through the slot's tables before work.kv_len.
  uint64_t read_context(const step::StepPlan& plan, const step::SeqWork& work, const Slot& slot);
  uint64_t read_group(const step::StepPlan& plan, const step::SeqWork& work, const Slot& slot,
                      int32_t group);
  // The token behind the slot's KV, whose last token's cell this is.
  void sample_token(Slot& slot, const step::SeqWork& work, const Cell& last,
                    std::span<const uint32_t> mask, step::SeqResult* result);
  void keep_path(const step::SeqWork& work, const Slot& slot, std::span<const int32_t> rows);
  void time_guesses(const step::StepPlan& plan, InFlight& step);
  void run_guess(const step::SeqWork& work, const Slot& slot, step::SeqResult* result);
  std::vector<int32_t> next_tokens(const Slot& slot, int32_t count);
  Cell& cell(const Slot& slot, int32_t group, int32_t position);
  int32_t num_groups() const { return options_.capacity.kv_groups.size(); }
  bool draw();  // a coin of options_.seed

  const FakeOptions options_;
  bool has_differed_ = false;
  int64_t most_decodes_ = 0;
  std::vector<Cell> memory_;  // [num_blocks, block_size]
  std::vector<Slot> slots_;
  std::vector<LaunchedSlot> launched_;  // by slot
  std::vector<BlockUse> block_uses_;
  std::vector<State> states_;
  std::vector<StateUse> state_uses_;
  std::deque<SlowCopy> slow_copies_;  // that are not done
  int64_t copies_begun_ = 0;          // slow ones
  int64_t copies_done_ = 0;
  int64_t copies_told_ = 0;                     // by results that were collected
  std::vector<RecordWork> record_work_;         // that is not done
  std::map<int64_t, step::RecordCopy> untold_;  // that no result was collected of
  std::vector<FakeRecord> placements_;          // of host memory
  std::shared_ptr<FakeFiles> files_;
  std::deque<InFlight> in_flight_;
  FakeTaps taps_;
  std::optional<FakeProposer> proposer_;  // where the capacity guesses
  int64_t num_guessed_ = 0;               // steps
  step::StepId last_launched_ = 0;
  step::StepId last_collected_ = 0;
  int64_t busy_until_us_ = 0;
  uint64_t draws_ = 0;
  bool dead_ = false;
  std::vector<std::string> violations_;
  uint64_t computed_tokens_ = 0;
  uint64_t masked_results_ = 0;
  uint64_t windowed_hits_ = 0;
};

}  // namespace rudder::testing
