#include "rudder/exec/step_layout.h"

#include <iterator>

namespace rudder::exec {

StepLayout layout_of(int64_t num_tokens, int64_t num_seqs, int64_t num_sampled, int64_t num_groups,
                     bool has_taps, const RareParts& rare) {
  StepLayout layout;
  const auto adapter_bytes = [&](int64_t count) {
    return rare.adapters ? adapter_batch_bytes(count) : 0;
  };
  layout.kv_len = layout.q_begin + part_bytes<int32_t>(num_seqs + 1);
  layout.table_row = layout.kv_len + part_bytes<int32_t>(num_seqs);
  layout.state = layout.table_row + part_bytes<int32_t>(num_seqs);
  layout.num_draft = layout.state + part_bytes<int32_t>(rare.states);
  layout.ids = layout.num_draft + part_bytes<int32_t>(rare.states);
  layout.positions = layout.ids + part_bytes<int32_t>(num_tokens);
  layout.kv_slot = layout.positions + part_bytes<int32_t>(num_tokens);
  layout.ancestors = layout.kv_slot + part_bytes<int32_t>(num_groups * num_tokens);
  layout.adapters = layout.ancestors + part_bytes<uint64_t>(rare.ancestors);
  layout.taps = layout.adapters + adapter_bytes(num_tokens);
  const int64_t arrays = has_taps ? kTapArrays : 0;
  layout.logits_rows = layout.taps + arrays * part_bytes<int32_t>(num_tokens);
  layout.rows_taps = layout.logits_rows + part_bytes<int32_t>(num_sampled);
  layout.sample_rows = layout.rows_taps + arrays * part_bytes<int32_t>(num_sampled);
  layout.feedback_rows = layout.sample_rows + part_bytes<ops::SampleRow>(num_sampled);
  layout.goes_on_rows = layout.feedback_rows + part_bytes<int32_t>(rare.feedback_rows);
  layout.rows_adapters = layout.goes_on_rows + part_bytes<int32_t>(rare.goes_on_rows);
  layout.lists = layout.rows_adapters + adapter_bytes(num_sampled);
  return layout;
}

StepLayout layout_of(const PackedStep& packed) {
  return layout_of(packed.num_tokens(), packed.num_seqs(), packed.num_sampled(),
                   std::ssize(packed.kv_slot), packed.taps.is_used,
                   {.states = std::ssize(packed.states.state),
                    .feedback_rows = std::ssize(packed.guesses.feedback_rows),
                    .goes_on_rows = std::ssize(packed.guesses.goes_on_rows),
                    .ancestors = std::ssize(packed.ancestors),
                    .adapters = packed.taps.adapters.is_used});
}

}  // namespace rudder::exec
