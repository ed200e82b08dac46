// Packing: a StepPlan and the slots it names become the flat arrays that one forward pass reads.
// Used by the executor's worker thread; the buffers are kept from step to step.
#pragma once

#include <cstdint>
#include <vector>

#include "rudder/exec/slot_table.h"
#include "rudder/model/decoder.h"
#include "rudder/step/plan.h"

namespace rudder::exec {

struct PackedStep {
  // One row of the plan whose next token is to be sampled.
  struct SampledRow {
    size_t seq = 0;  // index into StepPlan.seqs
    Slot* slot = nullptr;
    int32_t position = 0;  // of the token to be sampled
  };

  std::vector<int32_t> ids;  // masked rows are left out
  std::vector<int32_t> positions;
  std::vector<int32_t> kv_slot;
  std::vector<int32_t> q_begin;
  std::vector<int32_t> kv_len;
  std::vector<int32_t> block_table;
  std::vector<int32_t> logits_rows;
  int32_t max_blocks = 0;
  std::vector<SampledRow> sampled;  // one per logits row
  std::vector<const Slot*> slots;   // one per packed sequence
  std::vector<bool> is_masked;      // one per row of the plan

  model::ForwardBatch batch() const;
};

// Applies the plan's slot edits, then packs its rows.
void pack_step(const step::StepPlan& plan, const step::Capacity& capacity, SlotTable& slots,
               PackedStep& packed);

}  // namespace rudder::exec
