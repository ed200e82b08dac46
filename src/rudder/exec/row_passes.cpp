#include "rudder/exec/row_passes.h"

#include <algorithm>

#include "rudder/base/check.h"
#include "rudder/exec/scorer.h"

namespace rudder::exec {

step::Capacity RowPasses::capacity_of(const step::Capacity& capacity, int32_t num_fetched) {
  return {.num_slots = capacity.num_slots,
          .num_blocks = 1,
          .block_size = capacity.block_size,
          .max_tokens_per_step = capacity.num_slots,
          .max_seq_len = capacity.block_size,
          .vocab_size = capacity.vocab_size,
          .max_in_flight = capacity.max_in_flight,
          .max_repeat = num_fetched,
          .kv_groups = capacity.kv_groups};
}

int64_t RowPasses::device_bytes(const step::Capacity& capacity, int64_t hidden, tensor::DType act,
                                int32_t num_fetched) {
  return StepBuffers::device_bytes(capacity_of(capacity, num_fetched), StepBuffers::Counts::kNone) +
         max_logits_rows(capacity) * hidden * static_cast<int64_t>(tensor::dtype_bytes(act));
}

Result<std::unique_ptr<RowPasses>> RowPasses::make(const DraftSite& site, int32_t num_fetched) {
  std::unique_ptr<RowPasses> passes(new RowPasses(site, capacity_of(site.capacity, num_fetched)));
  RUDDER_TRY(passes->buffers_,
             StepBuffers::make(site.ops, passes->capacity_, nullptr, StepBuffers::Counts::kNone));
  return passes;
}

int32_t RowPasses::pack(std::span<const GuessAsk> asks) {
  packed.clear();
  packed.kv_slot.resize(static_cast<size_t>(capacity_.kv_groups.size()));
  packed.max_q_len = 1;
  int32_t most = 0;
  for (const GuessAsk& ask : asks) {
    if (ask.num_guess == 0) continue;
    RUDDER_CHECK(ask.logits_row >= 0, "sequence {} sampled nothing", ask.seq);
    ops::SampleRow row;
    row.slot = ask.id.value;
    row.temperature = 0;
    row.max_len = ask.slot->max_len;
    row.num_guess = ask.num_guess;
    packed.edits.opened.push_back({.slot = row.slot, .has_counts = 0});
    packed.logits_rows.push_back(static_cast<int32_t>(packed.ids.size()));
    packed.sample_rows.push_back(row);
    packed.guesses.goes_on_rows.push_back(ask.logits_row);
    packed.ids.push_back(0);
    packed.positions.push_back(0);
    for (std::vector<int32_t>& slots : packed.kv_slot) slots.push_back(-1);
    packed.q_begin.push_back(static_cast<int32_t>(packed.ids.size()));
    packed.kv_len.push_back(ask.slot->kv_len);
    packed.table_row.push_back(ask.id.value);
    packed.max_kv_len = std::max(packed.max_kv_len, ask.slot->kv_len);
    most = std::max(most, ask.num_guess);
  }
  return most;
}

Result<DeviceStep> RowPasses::begin() {
  entry_ = (entry_ + 1) % static_cast<size_t>(capacity_.max_in_flight);
  return buffers_->begin(packed, entry_);
}

Result<DeviceStep> RowPasses::begin_behind(const DeviceStep& step) {
  RUDDER_TRY(DeviceStep pass, begin());
  ops_.draft_ops()->place_tails({.model = slots_,
                                 .own = pass.sample.state,
                                 .q_begin = pass.forward.attention.q_begin,
                                 .table_row = pass.forward.attention.table_row,
                                 .ids = pass.forward.ids,
                                 .positions = pass.forward.positions,
                                 .kv_slot = pass.forward.kv_slot,
                                 .kv_len = pass.forward.attention.kv_len,
                                 .logits_rows = pass.forward.logits_rows,
                                 .sample_rows = pass.sample.rows,
                                 .step_rows = step.sample.rows,
                                 .goes_on_rows = pass.forward.goes_on_rows,
                                 .keeps_kv = false,
                                 .block_size = capacity_.block_size});
  return pass;
}

void RowPasses::keep(const DeviceStep& pass, int32_t index) {
  ops_.draft_ops()->keep_guess(
      {.model = slots_, .rows = pass.sample.rows, .sampled = pass.sample.sampled, .index = index});
}

}  // namespace rudder::exec
