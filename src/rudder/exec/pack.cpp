#include "rudder/exec/pack.h"

#include <algorithm>

#include "rudder/base/check.h"

namespace rudder::exec {
namespace {

void pack_tokens(const step::StepPlan& plan, const step::SeqWork& work, int32_t vocab_size,
                 PackedStep& packed) {
  int32_t count = work.q_len;  // of the host's tokens
  if (work.tokens == step::TokenSource::kCarry) {
    packed.ids.push_back(-1 - work.slot.value);
    count = work.num_draft;
    if (work.takes_guess) packed.ids.insert(packed.ids.end(), static_cast<size_t>(count), -1);
    if (count == 0 || work.takes_guess) return;
  }
  RUDDER_CHECK(work.token_begin >= 0 &&
                   int64_t{work.token_begin} + count <= static_cast<int64_t>(plan.tokens.size()),
               "tokens {} + {} of {}", work.token_begin, count, plan.tokens.size());
  const auto begin = plan.tokens.begin() + work.token_begin;
  for (auto token = begin; token != begin + count; ++token) {
    RUDDER_CHECK(*token >= 0 && *token < vocab_size, "token {}", *token);
    packed.ids.push_back(*token);
  }
}

// Where each group writes the sequence's tokens, in blocks of one layer (slot_table.cpp).
void pack_kv_slots(const step::SeqWork& work, const Slot& slot, const step::Capacity& capacity,
                   PackedStep& packed) {
  const int32_t size = capacity.block_size;
  for (size_t g = 0; g < slot.blocks.size(); ++g) {
    const int32_t layers = capacity.kv_groups[g].layers;
    for (int32_t position = work.kv_len; position < work.kv_len + work.q_len; ++position) {
      const step::BlockId block = slot.blocks[g][static_cast<size_t>(position / size)];
      packed.kv_slot[g].push_back(block * layers * size + position % size);
    }
  }
}

// One for each position that wants logits, chained by the drafts between them, or as their tree.
void pack_sample_rows(size_t seq, const step::SeqWork& work, SlotTable& slots, PackedStep& packed) {
  ops::SampleRow row = slots.sample_row(work, packed.lists);
  const int32_t first_position = row.position;
  for (int32_t i = 0; i <= work.num_draft; ++i) {
    const int32_t token = packed.q_begin.back() - 1 - work.num_draft + i;
    row.position = first_position + work.depth(i);
    if (work.constrained) row.mask_row = packed.num_masks++;
    if (work.tree.empty()) {
      if (i == work.num_draft) {
        row.draft = -1;
      } else {
        row.draft = work.takes_guess ? ops::kNoDraft : packed.ids[static_cast<size_t>(token) + 1];
      }
      row.num_behind = i;
    } else if (i > 0) {
      row.parent_up = i - work.tree.parent(i);
      row.own_draft = packed.ids[static_cast<size_t>(token)];
    }
    packed.logits_rows.push_back(token);
    packed.sampled_seq.push_back(static_cast<int32_t>(seq));
    packed.sample_rows.push_back(row);
    row.num_guess = 0;  // it is the first's
  }
  packed.any_drafts = packed.any_drafts || work.num_draft > 0;
  // Drafts may turn out wrong, and the positions be lower than they are here.
  const bool may_ban = row.stop_from > 0 && row.num_stop_ids > 0;
  packed.all_greedy = packed.all_greedy && row.temperature == 0.0f;
  packed.any_logprobs = packed.any_logprobs || row.num_logprobs >= 0;
  packed.any_changed = packed.any_changed || row.num_bias > 0 || row.has_penalties != 0 || may_ban;
}

// Of the sequence's tokens, which are the last packed; a step without trees has none.
void pack_ancestors(const step::SeqWork& work, PackedStep& packed) {
  if (work.tree.empty()) return;
  packed.ancestors.resize(packed.ids.size() - static_cast<size_t>(work.q_len), 0);
  for (int32_t i = 0; i < work.q_len; ++i) packed.ancestors.push_back(work.tree.ancestors(i));
}

// `first` is the sequence's first token.
void pack_scores(size_t seq, const step::SeqWork& work, const Slot& slot, int32_t first,
                 const step::Capacity& capacity, PackedStep& packed) {
  const auto count = static_cast<int32_t>(work.score_tokens.size());
  if (count == 0) return;
  const int32_t num_top = slot.sampling.num_prompt_logprobs;
  RUDDER_CHECK(packed.repeat == 1 && work.score_begin >= 0 &&
                   work.score_begin + count <= work.q_len && num_top >= 0 &&
                   num_top <= step::kMaxLogprobs,
               "slot {}: {} tokens are scored from {} on, {} beside each", work.slot.value, count,
               work.score_begin, num_top);
  for (int32_t i = 0; i < count; ++i) {
    const int32_t token = work.score_tokens[static_cast<size_t>(i)];
    RUDDER_CHECK(token >= 0 && token < capacity.vocab_size, "token {} is scored", token);
    packed.scores.rows.push_back(first + work.score_begin + i);
    packed.scores.tokens.push_back(token);
    packed.scores.seq.push_back(static_cast<int32_t>(seq));
    packed.scores.tops.push_back(num_top);
  }
}

}  // namespace

void PackedStep::clear() {
  edits.clear();
  repeat = 1;
  ids.clear();
  positions.clear();
  for (std::vector<int32_t>& slots : kv_slot) slots.clear();
  q_begin.assign(1, 0);
  kv_len.clear();
  table_row.clear();
  max_q_len = 0;
  max_kv_len = 0;
  ancestors.clear();
  logits_rows.clear();
  sample_rows.clear();
  sampled_seq.clear();
  lists.clear();
  scores.clear();
  num_masks = 0;
  all_greedy = true;
  any_logprobs = false;
  any_changed = false;
  any_drafts = false;
  guesses.feedback_rows.clear();
  guesses.goes_on_rows.clear();
  states.clear();
}

void PackedStates::clear() {
  state.clear();
  num_draft.clear();
  copies_before.clear();
  copies_after.clear();
}

void pack_step(const step::StepPlan& plan, const step::Capacity& capacity, SlotTable& slots,
               PackedStep& packed) {
  packed.clear();
  packed.kv_slot.resize(static_cast<size_t>(capacity.kv_groups.size()));
  RUDDER_CHECK(plan.repeat >= 1 && plan.repeat <= capacity.max_repeat, "{} iterations",
               plan.repeat);
  packed.repeat = plan.repeat;
  packed.states.copies_before = plan.copies_before;
  packed.states.copies_after = plan.copies_after;
  for (const step::SlotEdit& edit : plan.slots) slots.apply(edit, plan.id, packed.edits);
  for (size_t i = 0; i < plan.seqs.size(); ++i) {
    const step::SeqWork& work = plan.seqs[i];
    const Slot& slot = slots.begin_sequence(work, plan, packed.edits);
    const int32_t kv_len = work.kv_len + work.q_len;
    pack_tokens(plan, work, capacity.vocab_size, packed);
    for (int32_t i = 0; i < work.q_len; ++i) {
      packed.positions.push_back(work.kv_len + work.depth(i));
    }
    pack_ancestors(work, packed);
    pack_kv_slots(work, slot, capacity, packed);
    RUDDER_CHECK(
        !work.constrained || (work.logits != step::LogitsWanted::kNone && plan.repeat == 1),
        "step {}: slot {} has a mask for no token, or for several", plan.id, work.slot.value);
    pack_scores(i, work, slot, packed.q_begin.back(), capacity, packed);
    packed.q_begin.push_back(static_cast<int32_t>(packed.ids.size()));
    packed.kv_len.push_back(kv_len);
    packed.table_row.push_back(work.slot.value);
    if (!capacity.states.empty()) {
      packed.states.state.push_back(slot.state);
      packed.states.num_draft.push_back(work.num_draft);
    }
    if (work.tree.empty()) packed.max_q_len = std::max(packed.max_q_len, work.q_len);
    packed.max_kv_len = std::max(packed.max_kv_len, kv_len);
    if (work.logits != step::LogitsWanted::kNone) pack_sample_rows(i, work, slots, packed);
  }
  if (!packed.ancestors.empty()) packed.ancestors.resize(packed.ids.size(), 0);
  RUDDER_CHECK(packed.num_tokens() <= capacity.max_tokens_per_step,
               "{} tokens in a step of at most {}", packed.num_tokens(),
               capacity.max_tokens_per_step);
}

void words_for_chains(int32_t most, PackedStep& packed) {
  int32_t longest = 0;
  for (size_t seq = 0; seq < packed.kv_len.size(); ++seq) {
    const auto begin = static_cast<size_t>(packed.q_begin[seq]);
    const int32_t q_len = packed.q_begin[seq + 1] - packed.q_begin[seq];
    if (q_len == 0 || packed.ancestors[begin] != 0) continue;
    if (q_len <= most || q_len > 1 + step::kMaxTreeDrafts) {
      longest = std::max(longest, q_len);
      continue;
    }
    for (int32_t i = 0; i < q_len; ++i) {
      packed.ancestors[begin + static_cast<size_t>(i)] = ~uint64_t{0} >> (63 - i);
    }
  }
  packed.max_q_len = longest;
}

void pad_step(int64_t num_tokens, int64_t num_seqs, const step::Capacity& capacity,
              PackedStep& packed) {
  packed.kv_slot.resize(static_cast<size_t>(capacity.kv_groups.size()));
  const bool samples_all = packed.num_sampled() == packed.num_tokens();
  ops::SampleRow nobody;
  nobody.slot = capacity.num_slots;
  nobody.temperature = 0;
  while (packed.num_seqs() < num_seqs) {
    const int64_t left = num_tokens - packed.num_tokens();
    const bool is_last = packed.num_seqs() + 1 == num_seqs;
    for (int64_t i = 0; i < (is_last ? left : std::min<int64_t>(left, 1)); ++i) {
      if (samples_all) {
        packed.logits_rows.push_back(static_cast<int32_t>(packed.num_tokens()));
        packed.sample_rows.push_back(nobody);
      }
      packed.ids.push_back(0);
      packed.positions.push_back(0);
      for (std::vector<int32_t>& slots : packed.kv_slot) slots.push_back(-1);
    }
    packed.q_begin.push_back(static_cast<int32_t>(packed.num_tokens()));
    packed.kv_len.push_back(0);
    packed.table_row.push_back(capacity.num_slots);
    if (!capacity.states.empty()) {
      packed.states.state.push_back(step::kNoState);
      packed.states.num_draft.push_back(0);
    }
  }
  RUDDER_CHECK(packed.num_tokens() == num_tokens, "{} tokens padded to {}", packed.num_tokens(),
               num_tokens);
  if (!packed.ancestors.empty()) packed.ancestors.resize(packed.ids.size(), 0);
  pad_taps(packed.num_tokens(), capacity.num_slots, packed.taps);
}

}  // namespace rudder::exec
