#include "rudder/exec/slot_table.h"

#include <algorithm>

#include "rudder/base/check.h"

namespace rudder::exec {

SlotTable::SlotTable(const step::Capacity& capacity)
    : capacity_(capacity), slots_(static_cast<size_t>(capacity.num_slots)) {
  const int32_t max_blocks = (capacity.max_seq_len + capacity.block_size - 1) / capacity.block_size;
  for (Slot& slot : slots_) slot.blocks.reserve(static_cast<size_t>(max_blocks));
}

void SlotTable::apply(const step::SlotEdit& edit) {
  RUDDER_CHECK(edit.slot.value >= 0 && edit.slot.value < capacity_.num_slots, "slot {}",
               edit.slot.value);
  Slot& slot = slots_[static_cast<size_t>(edit.slot.value)];
  RUDDER_CHECK(!slot.is_open || slot.generation != edit.generation,
               "slot {} is opened twice under generation {}", edit.slot.value, edit.generation);
  RUDDER_CHECK(edit.max_len > 0 && edit.max_len <= capacity_.max_seq_len, "max_len {}",
               edit.max_len);
  RUDDER_CHECK(edit.num_output >= 0);
  for (const auto& [token, bias] : edit.sampling.logit_bias) {
    RUDDER_CHECK(token >= 0 && token < capacity_.vocab_size, "biased token {}", token);
  }
  slot.generation = edit.generation;
  slot.is_open = true;
  slot.has_ended = false;
  slot.sampling = edit.sampling;
  slot.blocks.clear();
  append_blocks(slot, edit.blocks);
  slot.kv_len = -1;
  slot.carry = -1;
  slot.num_output = edit.num_output;
  slot.max_len = edit.max_len;
  count_history(slot, edit);
}

void SlotTable::count_history(Slot& slot, const step::SlotEdit& edit) const {
  if (!edit.sampling.needs_history()) {
    slot.output_count = {};
    slot.prompt_seen = {};
    return;
  }
  const auto vocab = static_cast<size_t>(capacity_.vocab_size);
  slot.output_count.assign(vocab, 0);
  slot.prompt_seen.assign(vocab, 0);
  const auto prompt_len = static_cast<size_t>(edit.history_prompt_len);
  RUDDER_CHECK(prompt_len <= edit.history.size() &&
                   edit.history.size() - prompt_len == static_cast<size_t>(edit.num_output),
               "{} tokens of history, {} of them prompt, {} output", edit.history.size(),
               prompt_len, edit.num_output);
  for (size_t i = 0; i < edit.history.size(); ++i) {
    const int32_t token = edit.history[i];
    RUDDER_CHECK(token >= 0 && token < capacity_.vocab_size, "token {} of history", token);
    if (i < prompt_len) {
      slot.prompt_seen[static_cast<size_t>(token)] = 1;
    } else {
      ++slot.output_count[static_cast<size_t>(token)];
    }
  }
}

void SlotTable::append_blocks(Slot& slot, const std::vector<step::BlockId>& blocks) const {
  for (const step::BlockId block : blocks) {
    RUDDER_CHECK(block >= 0 && block < capacity_.num_blocks, "block {}", block);
    slot.blocks.push_back(block);
  }
}

Slot* SlotTable::begin_row(const step::SeqWork& work, step::StepId step) {
  RUDDER_CHECK(work.slot.value >= 0 && work.slot.value < capacity_.num_slots, "slot {}",
               work.slot.value);
  Slot& slot = slots_[static_cast<size_t>(work.slot.value)];
  RUDDER_CHECK(slot.is_open && slot.generation == work.generation,
               "slot {}: row of generation {}, slot of {}", work.slot.value, work.generation,
               slot.generation);
  RUDDER_CHECK(slot.last_step != step, "slot {} has two rows in step {}", work.slot.value, step);
  slot.last_step = step;
  if (slot.has_ended) return nullptr;

  append_blocks(slot, work.append_blocks);
  RUDDER_CHECK(work.q_len >= 1 && work.kv_len >= 0, "slot {}: q_len {}, kv_len {}", work.slot.value,
               work.q_len, work.kv_len);
  RUDDER_CHECK(slot.kv_len < 0 || slot.kv_len == work.kv_len, "slot {}: kv_len {}, {} are in KV",
               work.slot.value, work.kv_len, slot.kv_len);
  const int64_t end = int64_t{work.kv_len} + work.q_len;
  RUDDER_CHECK(end < slot.max_len, "slot {}: {} tokens, max_len {}", work.slot.value, end,
               slot.max_len);
  RUDDER_CHECK(end <= static_cast<int64_t>(slot.blocks.size()) * capacity_.block_size,
               "slot {}: {} tokens, {} blocks", work.slot.value, end, slot.blocks.size());
  if (work.tokens == step::TokenSource::kCarry) {
    RUDDER_CHECK(work.q_len == 1 && slot.carry >= 0, "slot {}: nothing to carry", work.slot.value);
  }
  slot.kv_len = static_cast<int32_t>(end);
  return &slot;
}

ops::SampleRow SlotTable::sample_row(const Slot& slot, int32_t position) const {
  const step::SamplingParams& sampling = slot.sampling;
  ops::SampleRow row;
  row.temperature = sampling.temperature;
  row.top_k = sampling.top_k;
  row.top_p = sampling.top_p;
  row.min_p = sampling.min_p;
  row.repetition_penalty = sampling.repetition_penalty;
  row.presence_penalty = sampling.presence_penalty;
  row.frequency_penalty = sampling.frequency_penalty;
  row.seed = sampling.seed;
  row.position = position;
  row.num_logprobs = sampling.num_logprobs;
  row.ban_stop_ids = slot.num_output < sampling.min_tokens;
  row.stop_ids = sampling.stop_ids;
  row.logit_bias = sampling.logit_bias;
  if (sampling.needs_history()) {
    row.output_count = slot.output_count.data();
    row.prompt_seen = slot.prompt_seen.data();
  }
  return row;
}

step::RowEnd SlotTable::accept(Slot& slot, int32_t token, int32_t position) const {
  if (token < 0) {
    slot.has_ended = true;
    return step::RowEnd::kNumerical;
  }
  RUDDER_CHECK(token < capacity_.vocab_size, "sampled token {}", token);
  slot.carry = token;
  ++slot.num_output;
  if (!slot.output_count.empty()) ++slot.output_count[static_cast<size_t>(token)];
  const std::vector<int32_t>& stop_ids = slot.sampling.stop_ids;
  if (std::find(stop_ids.begin(), stop_ids.end(), token) != stop_ids.end()) {
    slot.has_ended = true;
    return step::RowEnd::kStopId;
  }
  if (position + 1 >= slot.max_len) {
    slot.has_ended = true;
    return step::RowEnd::kLength;
  }
  return step::RowEnd::kNone;
}

}  // namespace rudder::exec
