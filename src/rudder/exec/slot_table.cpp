#include "rudder/exec/slot_table.h"

#include <algorithm>
#include <bit>

#include "rudder/base/check.h"

namespace rudder::exec {

int32_t max_blocks_per_seq(const step::Capacity& capacity) {
  return (capacity.max_seq_len + capacity.block_size - 1) / capacity.block_size;
}

int32_t max_sampled_rows(const step::Capacity& capacity) {
  const int64_t wanted = int64_t{capacity.num_slots} * (1 + capacity.drafts.max_draft);
  const int32_t most = std::max(capacity.num_slots, capacity.max_tokens_per_step);
  return static_cast<int32_t>(std::min<int64_t>(wanted, most));
}

void SlotEdits::clear() {
  opened.clear();
  history.clear();
  blocks.clear();
  kept.clear();
}

SlotTable::SlotTable(const step::Capacity& capacity)
    : capacity_(capacity),
      max_blocks_(static_cast<size_t>(max_blocks_per_seq(capacity))),
      slots_(static_cast<size_t>(capacity.num_slots)) {
  for (Slot& slot : slots_) {
    slot.blocks.resize(static_cast<size_t>(capacity.kv_groups.size()));
    for (step::GroupTable& table : slot.blocks) table.reserve(max_blocks_);
  }
}

void SlotTable::apply(const step::SlotEdit& edit, step::StepId step, SlotEdits& edits) {
  const int32_t index = edit.slot.value;
  RUDDER_CHECK(index >= 0 && index < capacity_.num_slots, "slot {}", index);
  Slot& slot = slots_[static_cast<size_t>(index)];
  RUDDER_CHECK(!slot.is_open || slot.generation != edit.generation,
               "slot {} is opened twice under generation {}", index, edit.generation);
  RUDDER_CHECK(slot.opened_step != step, "slot {} is opened twice in step {}", index, step);
  RUDDER_CHECK(edit.max_len > 0 && edit.max_len <= capacity_.max_seq_len, "max_len {}",
               edit.max_len);
  RUDDER_CHECK(edit.num_output >= 0);
  const step::SamplingParams& sampling = edit.sampling;
  RUDDER_CHECK(sampling.stop_ids.size() <= step::kMaxStopIds, "{} stop ids",
               sampling.stop_ids.size());
  RUDDER_CHECK(sampling.logit_bias.size() <= step::kMaxLogitBias, "{} biased tokens",
               sampling.logit_bias.size());
  RUDDER_CHECK(sampling.num_logprobs <= step::kMaxLogprobs, "{} logprobs", sampling.num_logprobs);
  for (const auto& [token, bias] : sampling.logit_bias) {
    RUDDER_CHECK(token >= 0 && token < capacity_.vocab_size, "biased token {}", token);
  }
  const bool has_state = edit.state != step::kNoState;
  RUDDER_CHECK(has_state == !capacity_.states.empty() &&
                   (!has_state || (edit.state >= 0 && edit.state < capacity_.states.count)),
               "slot {}: state {} of {}", index, edit.state, capacity_.states.count);
  slot.generation = edit.generation;
  slot.is_open = true;
  slot.state = edit.state;
  slot.has_carry = false;
  slot.sampling = sampling;
  slot.kv_len = -1;
  slot.least_kv_len = -1;
  slot.max_len = edit.max_len;
  slot.prompt_len = edit.prompt_len;
  slot.opened_step = step;
  slot.has_history = edit.history_prompt_len == edit.prompt_len &&
                     std::ssize(edit.history) == int64_t{edit.prompt_len} + edit.num_output;
  slot.num_guess = 0;
  slot.is_followed = false;
  for (step::GroupTable& table : slot.blocks) table.clear();
  append_blocks(index, edit.blocks, true, edits);
  const bool has_counts = sampling.needs_history();
  edits.opened.push_back({.slot = index, .has_counts = has_counts ? 1 : 0});
  if (has_counts || capacity_.drafts.keeps_guesses) add_history(edit, edits);
}

void SlotTable::add_history(const step::SlotEdit& edit, SlotEdits& edits) const {
  const auto prompt_len = static_cast<size_t>(edit.history_prompt_len);
  RUDDER_CHECK(prompt_len <= edit.history.size() &&
                   edit.history.size() - prompt_len == static_cast<size_t>(edit.num_output),
               "{} tokens of history, {} of them prompt, {} output", edit.history.size(),
               prompt_len, edit.num_output);
  for (size_t i = 0; i < edit.history.size(); ++i) {
    const int32_t token = edit.history[i];
    RUDDER_CHECK(token >= 0 && token < capacity_.vocab_size, "token {} of history", token);
    if (edit.sampling.needs_history()) {
      edits.history.push_back(
          {.slot = edit.slot.value, .token = token, .is_prompt = i < prompt_len ? 1 : 0});
    }
    if (capacity_.drafts.keeps_guesses) {
      edits.kept.push_back(
          {.slot = edit.slot.value, .position = static_cast<int32_t>(i), .token = token});
    }
  }
}

// On the device a group's blocks are counted in those of one layer, of which the group's first is
// named: `layers` of them lie one behind another.
void SlotTable::append_blocks(int32_t index, const std::vector<step::GroupTable>& blocks,
                              bool may_be_gone, SlotEdits& edits) {
  Slot& slot = slots_[static_cast<size_t>(index)];
  RUDDER_CHECK(blocks.empty() || blocks.size() == slot.blocks.size(),
               "slot {}: blocks of {} KV groups, there are {}", index, blocks.size(),
               slot.blocks.size());
  for (size_t g = 0; g < blocks.size(); ++g) {
    step::GroupTable& table = slot.blocks[g];
    const int32_t row = static_cast<int32_t>(g) * (capacity_.num_slots + 1) + index;
    RUDDER_CHECK(
        blocks[g].size() == blocks[0].size() && table.size() + blocks[g].size() <= max_blocks_,
        "slot {}: {} blocks of group {}", index, table.size() + blocks[g].size(), g);
    for (const step::BlockId block : blocks[g]) {
      const bool is_gone = may_be_gone && block == step::kNoBlock;
      RUDDER_CHECK(is_gone || (block >= 0 && block < capacity_.num_blocks), "block {}", block);
      if (!is_gone) {
        edits.blocks.push_back({.row = row,
                                .index = static_cast<int32_t>(table.size()),
                                .block = block * capacity_.kv_groups[g].layers});
      }
      table.push_back(block);
    }
  }
}

// That every group has the blocks that tokens [begin, end) are written to and see.
void SlotTable::check_blocks(int32_t index, int64_t begin, int64_t end) const {
  const Slot& slot = slots_[static_cast<size_t>(index)];
  for (size_t g = 0; g < slot.blocks.size(); ++g) {
    const step::GroupTable& table = slot.blocks[g];
    RUDDER_CHECK(end <= static_cast<int64_t>(table.size()) * capacity_.block_size,
                 "slot {}: {} tokens, {} blocks of group {}", index, end, table.size(), g);
    const int32_t seen = capacity_.kv_groups[g].first_visible(static_cast<int32_t>(begin));
    const step::BlockId first = table[static_cast<size_t>(seen / capacity_.block_size)];
    RUDDER_CHECK(first != step::kNoBlock, "slot {}: position {} of group {} is gone", index, seen,
                 g);
  }
}

Slot& SlotTable::begin_sequence(const step::SeqWork& work, const step::StepPlan& plan,
                                SlotEdits& edits) {
  const int32_t index = work.slot.value;
  RUDDER_CHECK(index >= 0 && index < capacity_.num_slots, "slot {}", index);
  Slot& slot = slots_[static_cast<size_t>(index)];
  RUDDER_CHECK(slot.is_open && slot.generation == work.generation,
               "slot {}: row of generation {}, slot of {}", index, work.generation,
               slot.generation);
  RUDDER_CHECK(slot.last_step != plan.id, "slot {} has two rows in step {}", index, plan.id);
  slot.last_step = plan.id;

  append_blocks(index, work.append_blocks, false, edits);
  RUDDER_CHECK(work.q_len >= 1 && work.kv_len >= 0, "slot {}: q_len {}, kv_len {}", index,
               work.q_len, work.kv_len);
  const bool is_first = slot.kv_len < 0;
  RUDDER_CHECK(is_first || (slot.least_kv_len <= work.kv_len && work.kv_len <= slot.kv_len),
               "slot {}: kv_len {}, {} to {} are in KV", index, work.kv_len, slot.least_kv_len,
               slot.kv_len);
  check_drafts(work, plan);
  RUDDER_CHECK(plan.repeat == 1 || (work.q_len == 1 && work.logits == step::LogitsWanted::kLast),
               "slot {}: a row of {} tokens cannot be repeated", index, work.q_len);
  int64_t end = int64_t{work.kv_len} + work.q_len;
  RUDDER_CHECK(end < slot.max_len, "slot {}: {} tokens, max_len {}", index, end, slot.max_len);
  end += step::seq_iterations(work, plan.repeat, slot.max_len) - 1;
  check_blocks(index, work.kv_len, end);
  end -= work.num_draft - work.most_accepted();
  check_guess(work, plan);
  if (work.tokens == step::TokenSource::kCarry) {
    RUDDER_CHECK(work.q_len == 1 + work.num_draft && slot.has_carry, "slot {}: nothing to carry",
                 index);
  }
  // Whether the host knows better than `least_kv_len` is not in the plan.
  const bool is_known = is_first || slot.least_kv_len == slot.kv_len;
  const int32_t least_begin = is_known ? work.kv_len : slot.least_kv_len;
  slot.kv_len = static_cast<int32_t>(end);
  slot.least_kv_len = least_begin + slot.kv_len - work.kv_len - work.most_accepted();
  return slot;
}

// What the slot's guess is when the step runs is known to the device alone.
void SlotTable::check_takes_guess(const step::SeqWork& work) const {
  const Slot& slot = slots_[static_cast<size_t>(work.slot.value)];
  RUDDER_CHECK(!work.takes_guess ||
                   (work.num_draft > 0 && work.num_draft <= slot.num_guess && work.tree.empty()),
               "slot {}: {} drafts of a guess of {}", work.slot.value, work.num_draft,
               slot.num_guess);
}

void SlotTable::check_drafts(const step::SeqWork& work, const step::StepPlan& plan) const {
  check_takes_guess(work);
  const bool wants_all = work.logits == step::LogitsWanted::kAll;
  RUDDER_CHECK(work.num_draft >= 0 && work.num_draft <= capacity_.drafts.max_draft &&
                   wants_all == (work.num_draft > 0),
               "slot {}: {} drafts of at most {}", work.slot.value, work.num_draft,
               capacity_.drafts.max_draft);
  RUDDER_CHECK(!wants_all || (work.tokens == step::TokenSource::kCarry && plan.repeat == 1 &&
                              work.score_tokens.empty()),
               "slot {}: drafts behind no carried token", work.slot.value);
  RUDDER_CHECK(
      work.tree.empty() || (capacity_.drafts.takes_trees && work.tree.size() == work.num_draft),
      "slot {}: a tree of {} for {} drafts", work.slot.value, work.tree.size(), work.num_draft);
}

// The proposer's KV of them lies in the sequence's blocks, up to its last guess, where it has KV.
void SlotTable::check_guess(const step::SeqWork& work, const step::StepPlan& plan) const {
  if (work.guess.empty()) return;
  const Slot& slot = slots_[static_cast<size_t>(work.slot.value)];
  const int32_t sampled = work.kv_len + work.q_len - work.num_draft;
  const int64_t end = work.guess.begin + static_cast<int64_t>(work.guess.tokens.size());
  const int32_t count = work.guess.num_guess;
  RUDDER_CHECK(capacity_.drafts.guesses && plan.repeat == 1 && count >= 0 &&
                   count <= capacity_.drafts.max_draft,
               "slot {}: {} guesses of at most {}", work.slot.value, count,
               capacity_.drafts.max_draft);
  // Behind tokens that are not known yet the proposer runs the last ones, wherever they are.
  const bool keeps = capacity_.drafts.keeps_guesses;
  const bool has_run = end == sampled || (keeps && (slot.is_followed || end + 1 == sampled));
  RUDDER_CHECK(work.guess.begin >= 0 && end <= sampled &&
                   (count == 0 || (has_run && work.logits != step::LogitsWanted::kNone)),
               "slot {}: tokens {} to {} before guesses, {} is sampled", work.slot.value,
               work.guess.begin, end, sampled);
  RUDDER_CHECK(!keeps || slot.has_history, "slot {}: it is guessed for without its tokens",
               work.slot.value);
  if (capacity_.drafts.guesses_from_rows) {
    RUDDER_CHECK(work.guess.tokens.empty(), "slot {}: tokens for a proposer that runs none",
                 work.slot.value);
    return;
  }
  const int64_t written = std::min(work.longest_len() + count, slot.max_len);
  RUDDER_CHECK(count == 0 || written <= std::ssize(slot.blocks[0]) * capacity_.block_size,
               "slot {}: guesses up to {}, {} blocks", work.slot.value, written,
               slot.blocks[0].size());
}

ops::SampleRow SlotTable::sample_row(const step::SeqWork& work, std::vector<int32_t>& lists) {
  Slot& slot = slots_[static_cast<size_t>(work.slot.value)];
  const step::SamplingParams& sampling = slot.sampling;
  ops::SampleRow row;
  row.seed = sampling.seed;
  row.position = work.kv_len + work.q_len - work.num_draft;
  row.slot = work.slot.value;
  row.temperature = sampling.temperature;
  row.top_k = sampling.top_k;
  row.top_p = sampling.top_p;
  row.min_p = sampling.min_p;
  row.repetition_penalty = sampling.repetition_penalty;
  row.presence_penalty = sampling.presence_penalty;
  row.frequency_penalty = sampling.frequency_penalty;
  row.has_penalties = sampling.needs_history() ? 1 : 0;
  row.num_logprobs = sampling.num_logprobs;
  row.stop_from = slot.prompt_len + sampling.min_tokens;
  row.stop_begin = static_cast<int32_t>(lists.size());
  row.num_stop_ids = static_cast<int32_t>(sampling.stop_ids.size());
  lists.insert(lists.end(), sampling.stop_ids.begin(), sampling.stop_ids.end());
  row.bias_begin = static_cast<int32_t>(lists.size());
  row.num_bias = static_cast<int32_t>(sampling.logit_bias.size());
  for (const auto& [token, bias] : sampling.logit_bias) {
    lists.push_back(token);
    lists.push_back(std::bit_cast<int32_t>(bias));
  }
  row.max_len = slot.max_len;
  row.num_guess = capacity_.drafts.looks_up() ? work.guess.num_guess : 0;
  slot.num_guess = capacity_.drafts.keeps_guesses ? work.guess.num_guess : 0;
  slot.is_followed = slot.num_guess > 0;
  slot.has_carry = true;
  return row;
}

}  // namespace rudder::exec
