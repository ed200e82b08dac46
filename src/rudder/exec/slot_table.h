// SlotTable: the state of every sequence on the executor's side: sampling parameters, block table,
// the last sampled token, what penalties count. Used by the executor's worker thread alone. What a
// plan says about slots is checked here: a plan comes from our scheduler, so a wrong one is a bug.
#pragma once

#include <cstdint>
#include <vector>

#include "rudder/ops/sample_args.h"
#include "rudder/step/executor.h"
#include "rudder/step/plan.h"
#include "rudder/step/result.h"

namespace rudder::exec {

struct Slot {
  uint32_t generation = 0;
  bool is_open = false;
  bool has_ended = false;  // later rows of this generation are masked
  step::SamplingParams sampling;
  std::vector<step::BlockId> blocks;
  int32_t kv_len = -1;  // tokens in KV after the last row; -1 before the first
  int32_t carry = -1;   // the last sampled token; -1 before the first
  int32_t num_output = 0;
  int32_t max_len = 0;
  step::StepId last_step = 0;  // the last step with a row of this slot
  // Filled when a penalty is on, else empty. [vocab]
  std::vector<int32_t> output_count;
  std::vector<uint8_t> prompt_seen;
};

class SlotTable {
 public:
  explicit SlotTable(const step::Capacity& capacity);

  void apply(const step::SlotEdit& edit);

  // The slot of a row about to run, its blocks appended; nullptr when the row is masked.
  Slot* begin_row(const step::SeqWork& work, step::StepId step);

  // The parameters of the slot's next token, at `position` of the sequence. Points into the slot.
  ops::SampleRow sample_row(const Slot& slot, int32_t position) const;

  // Takes the token sampled at `position`, or -1 when the logits were not numbers.
  step::RowEnd accept(Slot& slot, int32_t token, int32_t position) const;

 private:
  void count_history(Slot& slot, const step::SlotEdit& edit) const;
  void append_blocks(Slot& slot, const std::vector<step::BlockId>& blocks) const;

  const step::Capacity capacity_;
  std::vector<Slot> slots_;
};

}  // namespace rudder::exec
