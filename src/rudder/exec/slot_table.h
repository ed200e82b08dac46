// SlotTable: the host's record of every slot: sampling parameters, blocks, lengths. The device has
// the sampled tokens, ends and penalty counts (ops/slot_args.h). Only the executor's worker thread
// uses it. It checks what a plan says about slots; plans come from our own scheduler, so a wrong
// one is a bug (RUDDER_CHECK).
#pragma once

#include <cstdint>
#include <vector>

#include "rudder/ops/sample_args.h"
#include "rudder/ops/slot_args.h"
#include "rudder/step/executor.h"
#include "rudder/step/plan.h"

namespace rudder::exec {

struct Slot {
  uint32_t generation = 0;
  bool is_open = false;
  bool has_carry = false;  // a token was sampled for it, or will be by a step already enqueued
  step::SamplingParams sampling;
  step::StateId state = step::kNoState;
  std::vector<step::GroupTable> blocks;  // by KV group; all of one length
  // Tokens in KV after its last step's iterations, if every draft is right that can be; -1 before
  // the first step. Counts on where the sequence has ended without the host knowing: its results
  // are masked anyway.
  int32_t kv_len = -1;
  int32_t least_kv_len = -1;  // the same, if every draft since the host last knew is wrong
  int32_t max_len = 0;
  int32_t prompt_len = 0;
  step::StepId opened_step = 0;
  step::StepId last_step = 0;  // the last step that runs this slot
  bool has_history = false;    // it was opened with all of its tokens
  int32_t num_guess = 0;       // tokens that the last step that samples for it guesses at most
  bool is_followed = false;    // that step guesses: the proposer runs what it samples
};

// What a step changes of the device's slots; see ops::BeginStepArgs.
struct SlotEdits {
  std::vector<ops::OpenedSlot> opened;
  std::vector<ops::HistoryToken> history;
  std::vector<ops::BlockWrite> blocks;
  std::vector<ops::KeptToken> kept;

  bool empty() const { return opened.empty() && history.empty() && blocks.empty() && kept.empty(); }
  void clear();
};

class SlotTable {
 public:
  explicit SlotTable(const step::Capacity& capacity);

  void apply(const step::SlotEdit& edit, step::StepId step, SlotEdits& edits);

  const Slot& slot(step::SlotId id) const { return slots_[static_cast<size_t>(id.value)]; }

  // The slot of a sequence about to run, its blocks appended.
  Slot& begin_sequence(const step::SeqWork& work, const step::StepPlan& plan, SlotEdits& edits);

  // The parameters of the slot's next token, which is now on its way; its stop ids and biases go to
  // the end of `lists`.
  ops::SampleRow sample_row(const step::SeqWork& work, std::vector<int32_t>& lists);

 private:
  void check_drafts(const step::SeqWork& work, const step::StepPlan& plan) const;
  void check_takes_guess(const step::SeqWork& work) const;
  void check_guess(const step::SeqWork& work, const step::StepPlan& plan) const;
  void add_history(const step::SlotEdit& edit, SlotEdits& edits) const;
  void append_blocks(int32_t index, const std::vector<step::GroupTable>& blocks, bool may_be_gone,
                     SlotEdits& edits);
  void check_blocks(int32_t index, int64_t begin, int64_t end) const;

  const step::Capacity capacity_;
  const size_t max_blocks_;  // of one sequence
  std::vector<Slot> slots_;
};

// Rows of logits that a step samples at most: one a sequence, and one for each draft.
int32_t max_sampled_rows(const step::Capacity& capacity);

// Blocks of the longest sequence in one KV group.
int32_t max_blocks_per_seq(const step::Capacity& capacity);

}  // namespace rudder::exec
