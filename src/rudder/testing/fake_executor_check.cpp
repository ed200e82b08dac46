// FakeExecutor, what it checks when a step is launched: breaches of the step contract that a plan
// shows by itself or beside the steps in flight.
#include <fmt/format.h>

#include <algorithm>

#include "rudder/testing/fake_executor.h"

namespace rudder::testing {

bool FakeExecutor::check_launch(const step::StepPlan& plan) {
  const step::Capacity& capacity = options_.capacity;
  const size_t known = violations_.size();
  // The first may be any: a recording's later files begin in the middle of a run.
  if (last_launched_ == 0 ? plan.id == 0 : plan.id != last_launched_ + 1) {
    violation(fmt::format("step {} is launched after step {}", plan.id, last_launched_));
  }
  if (std::ssize(in_flight_) >= capacity.max_in_flight) {
    violation(fmt::format("step {}: {} steps are in flight already", plan.id, in_flight_.size()));
  }
  if (!in_flight_.empty() && in_flight_.back().awaits_masks()) {
    violation(fmt::format("step {}: the step before waits for its masks", plan.id));
  }
  // Of several ranks one may have told of a copy that another has not done: then none is told of.
  const bool may_wait = capacity.states.slow_copies && in_flight_.empty() && copies_begun_ > 0;
  const bool awaits_record = in_flight_.empty() && !untold_.empty();
  const bool has_copies =
      !plan.copies_before.empty() || !plan.record_copies.empty() || may_wait || awaits_record;
  const bool is_empty =
      plan.seqs.empty() && plan.tap_edits.empty() && plan.capture_edits.empty() && !has_copies;
  if (is_empty || plan.num_tokens() > capacity.max_tokens_per_step) {
    violation(fmt::format("step {} has {} tokens", plan.id, plan.num_tokens()));
  }
  if (plan.repeat < 1 || plan.repeat > capacity.max_repeat) {
    violation(fmt::format("step {} has {} iterations", plan.id, plan.repeat));
  }
  for (const step::SlotEdit& edit : plan.slots) check_edit(plan, edit);
  check_copies_before(plan);
  check_records(plan);
  for (const step::SeqWork& work : plan.seqs) check_work(plan, work);
  check_copies_after(plan);
  most_decodes_ = std::max(most_decodes_, std::ranges::count(plan.seqs, step::TokenSource::kCarry,
                                                             &step::SeqWork::tokens));
  std::vector<std::string> wrong;
  taps_.check(plan, &wrong);
  for (const std::string& text : wrong) violation(fmt::format("step {}: {}", plan.id, text));
  return violations_.size() == known;
}

// Of the steps that are not collected.
int32_t FakeExecutor::drafts_in_flight(step::SlotId slot, uint32_t generation) const {
  int32_t total = 0;
  for (const InFlight& step : in_flight_) {
    if (step.plan == nullptr) continue;
    for (const step::SeqWork& work : step.plan->seqs) {
      if (work.slot == slot && work.generation == generation) total += work.most_accepted();
    }
  }
  return total;
}

void FakeExecutor::check_drafts(const step::StepPlan& plan, const step::SeqWork& work) {
  const int32_t index = work.slot.value;
  if (work.num_draft < 0 || work.num_draft > options_.capacity.drafts.max_draft ||
      (work.num_draft > 0) != (work.logits == step::LogitsWanted::kAll)) {
    violation(fmt::format("step {}: slot {} has {} drafts", plan.id, index, work.num_draft));
  }
  if (work.num_draft > 0 &&
      (work.tokens != step::TokenSource::kCarry || plan.repeat > 1 || !work.score_tokens.empty())) {
    violation(fmt::format("step {}: slot {} has drafts behind no carried token", plan.id, index));
  }
  check_tree(plan, work);
  check_takes_guess(plan, work);
  const bool captures_draft = std::ranges::any_of(
      work.captures, [](const auto& span) { return span.q_begin + span.q_len > 1; });
  if (work.num_draft > 0 && captures_draft) {
    violation(fmt::format("step {}: slot {} captures a draft", plan.id, index));
  }
  const bool is_unsure = drafts_in_flight(work.slot, work.generation) > 0;
  if (is_unsure && (work.tokens != step::TokenSource::kCarry || !work.tap_spans.empty() ||
                    !work.captures.empty() || plan.repeat > 1)) {
    violation(
        fmt::format("step {}: slot {} does what hangs on a position not known", plan.id, index));
  }
}

void FakeExecutor::check_takes_guess(const step::StepPlan& plan, const step::SeqWork& work) {
  LaunchedSlot& slot = launched_[static_cast<size_t>(work.slot.value)];
  const bool fits = options_.capacity.drafts.keeps_guesses && work.num_draft > 0 &&
                    work.num_draft <= slot.num_guess && work.tree.empty();
  if (work.takes_guess && !fits) {
    violation(fmt::format("step {}: slot {} has {} drafts of a guess of {}", plan.id,
                          work.slot.value, work.num_draft, slot.num_guess));
  }
  if (work.logits != step::LogitsWanted::kNone) slot.num_guess = work.guess.num_guess;
}

void FakeExecutor::check_tree(const step::StepPlan& plan, const step::SeqWork& work) {
  const step::DraftTree& tree = work.tree;
  if (tree.empty()) return;
  if (!options_.capacity.drafts.takes_trees || tree.size() != work.num_draft ||
      !work.tap_spans.empty() || !work.captures.empty()) {
    violation(
        fmt::format("step {}: slot {} has a tree of {} for {} drafts, or one beside what "
                    "follows from its path",
                    plan.id, work.slot.value, tree.size(), work.num_draft));
    return;
  }
  const auto drafts = std::span(plan.tokens).subspan(static_cast<size_t>(work.token_begin));
  for (int32_t row = 1; row <= tree.size(); ++row) {
    for (int32_t other = 1; other < row; ++other) {
      if (tree.parent(row) != tree.parent(other) ||
          drafts[static_cast<size_t>(row - 1)] != drafts[static_cast<size_t>(other - 1)]) {
        continue;
      }
      violation(fmt::format("step {}: slot {} has the same draft twice behind one token", plan.id,
                            work.slot.value));
    }
  }
}

// Its tokens are checked when it runs.
void FakeExecutor::check_guess(const step::StepPlan& plan, const step::SeqWork& work,
                               const LaunchedSlot& slot) {
  if (work.guess.empty()) return;
  const int32_t count = work.guess.num_guess;
  const int32_t sampled = work.kv_len + work.q_len - work.num_draft;
  const int64_t end = work.guess.begin + std::ssize(work.guess.tokens);
  const int64_t written = std::min(work.longest_len() + count, slot.max_len);
  const bool from_rows = options_.capacity.drafts.guesses_from_rows;
  const bool fits = options_.capacity.drafts.guesses && plan.repeat == 1 && count >= 0 &&
                    count <= options_.capacity.drafts.max_draft && end <= sampled &&
                    (!from_rows || work.guess.tokens.empty());
  const bool keeps =
      options_.capacity.drafts.keeps_guesses;  // what lacks then is seen when it runs
  const bool is_behind =
      count == 0 || ((keeps || end == sampled) && work.logits != step::LogitsWanted::kNone);
  const bool has_blocks = count == 0 || from_rows ||
                          written <= std::ssize(slot.blocks.front()) * options_.capacity.block_size;
  if (keeps && !slot.has_history) {
    violation(fmt::format("step {}: slot {} is guessed for and was opened without its tokens",
                          plan.id, work.slot.value));
  }
  const bool is_sure = keeps || drafts_in_flight(work.slot, work.generation) == 0;
  if (fits && is_behind && has_blocks && is_sure) return;
  violation(fmt::format("step {}: slot {} guesses {} tokens behind {}, {} is sampled, {} blocks",
                        plan.id, work.slot.value, count, end, sampled, slot.blocks.front().size()));
}

void FakeExecutor::check_edit(const step::StepPlan& plan, const step::SlotEdit& edit) {
  const int32_t index = edit.slot.value;
  if (index < 0 || index >= options_.capacity.num_slots) {
    violation(fmt::format("step {}: slot {} does not exist", plan.id, index));
    return;
  }
  LaunchedSlot& slot = launched_[static_cast<size_t>(index)];
  if (slot.last_step > last_collected_) {
    violation(fmt::format("step {}: slot {} is reopened while step {} names it", plan.id, index,
                          slot.last_step));
  }
  if (edit.generation <= slot.generation) {
    violation(fmt::format("step {}: slot {} is reopened under generation {} after {}", plan.id,
                          index, edit.generation, slot.generation));
  }
  slot = {.generation = edit.generation, .max_len = edit.max_len, .blocks = {}};
  slot.has_history = edit.history_prompt_len == edit.prompt_len &&
                     std::ssize(edit.history) == int64_t{edit.prompt_len} + edit.num_output;
  check_state(plan, edit);
  if (!check_group_count(plan, edit.blocks.size())) return;
  slot.blocks = edit.blocks;
  slot.blocks.resize(static_cast<size_t>(num_groups()));
  for (const step::GroupTable& table : slot.blocks) {
    if (table.size() != slot.blocks.front().size()) {
      violation(fmt::format("step {}: the tables of slot {} differ in length", plan.id, index));
    }
    for (const step::BlockId block : table) {
      if (block == step::kNoBlock) continue;  // a window may be past it
      if (block < 0 || block >= options_.capacity.num_blocks) {
        violation(fmt::format("step {}: block {} does not exist", plan.id, block));
        continue;
      }
      const BlockUse& use = block_uses_[static_cast<size_t>(block)];
      if (is_writing(use)) {
        violation(fmt::format("step {}: slot {} shares block {}, which step {} is writing", plan.id,
                              index, block, use.last_write));
      }
    }
  }
}

bool FakeExecutor::is_state(const step::StepPlan& plan, const step::ObjectRef& object) {
  const bool fits = object.store == step::Store::kStates && object.group == 0 &&
                    object.index >= 0 && object.index < options_.capacity.states.count;
  if (!fits) violation(fmt::format("step {}: there is no object {}", plan.id, object.index));
  return fits;
}

void FakeExecutor::check_state(const step::StepPlan& plan, const step::SlotEdit& edit) {
  if (options_.capacity.states.empty() && edit.state == step::kNoState) return;
  if (!is_state(plan, step::state_ref(edit.state))) return;
  launched_[static_cast<size_t>(edit.slot.value)].state = edit.state;
  StateUse& use = state_uses_[static_cast<size_t>(edit.state)];
  if (use.last_use > last_collected_ || is_copied(use)) {
    violation(fmt::format("step {}: slot {} gets state {}, which step {} or a copy still uses",
                          plan.id, edit.slot.value, edit.state, use.last_use));
  }
  use = {.last_use = plan.id, .last_write = plan.id};
}

// To states of slots that the step opens, from such as nobody is writing (cache.C2).
void FakeExecutor::check_copies_before(const step::StepPlan& plan) {
  for (const step::ObjectCopy& copy : plan.copies_before) {
    if (!is_state(plan, copy.from) || !is_state(plan, copy.to)) continue;
    const bool is_opened = std::ranges::any_of(plan.slots, [&](const step::SlotEdit& edit) {
      return step::state_ref(edit.state) == copy.to;
    });
    StateUse& use = state_uses_[static_cast<size_t>(copy.from.index)];
    if (!is_opened || use.last_write > last_collected_) {
      violation(fmt::format("step {}: copies state {}, which step {} is writing, or to {}", plan.id,
                            copy.from.index, use.last_write, copy.to.index));
    }
    use.last_use = plan.id;
  }
}

// From states of the step's sequences, to such as no step in flight uses (cache.C4).
void FakeExecutor::check_copies_after(const step::StepPlan& plan) {
  for (const step::ObjectCopy& copy : plan.copies_after) {
    if (!is_state(plan, copy.from) || !is_state(plan, copy.to)) continue;
    const bool is_run = std::ranges::any_of(plan.seqs, [&](const step::SeqWork& work) {
      return step::state_ref(launched_[static_cast<size_t>(work.slot.value)].state) == copy.from &&
             work.num_draft == 0;
    });
    StateUse& use = state_uses_[static_cast<size_t>(copy.to.index)];
    if (!is_run || use.last_use > last_collected_ || is_copied(use)) {
      violation(fmt::format("step {}: copies state {} to {}, which step {} or a copy still uses",
                            plan.id, copy.from.index, copy.to.index, use.last_use));
    }
    use = {.last_use = plan.id, .last_write = plan.id};
  }
}

bool FakeExecutor::check_group_count(const step::StepPlan& plan, size_t num_tables) {
  if (num_tables == 0 || num_tables == static_cast<size_t>(num_groups())) return true;
  violation(fmt::format("step {}: blocks of {} groups, not {}", plan.id, num_tables, num_groups()));
  return false;
}

void FakeExecutor::append_blocks(const step::StepPlan& plan, const step::SeqWork& work,
                                 LaunchedSlot& slot) {
  if (!check_group_count(plan, work.append_blocks.size())) return;
  for (size_t g = 0; g < work.append_blocks.size(); ++g) {
    if (work.append_blocks[g].size() != work.append_blocks[0].size()) {
      violation(fmt::format("step {}: a sequence's tables grow apart", plan.id));
    }
    for (const step::BlockId block : work.append_blocks[g]) {
      if (block < 0 || block >= options_.capacity.num_blocks) {
        violation(fmt::format("step {}: block {} does not exist", plan.id, block));
        continue;
      }
      const BlockUse& use = block_uses_[static_cast<size_t>(block)];
      if (use.last_use > last_collected_ || use.records > 0) {
        violation(fmt::format("step {}: slot {} gets block {}, which step {} or a copy still uses",
                              plan.id, work.slot.value, block, use.last_use));
      }
      slot.blocks[g].push_back(block);
    }
  }
}

// What the sequence reads and writes of each group, up to `end`. Behind drafts it may begin before
// its kv_len: what it finds in the blocks there is checked when it runs.
void FakeExecutor::note_use(const step::StepPlan& plan, const step::SeqWork& work,
                            const LaunchedSlot& slot, int64_t end) {
  const int64_t size = options_.capacity.block_size;
  for (size_t g = 0; g < slot.blocks.size(); ++g) {
    const step::GroupTable& table = slot.blocks[g];
    const int32_t window = options_.capacity.kv_groups[g].window;
    const int64_t seen = window == 0 ? 0 : std::max<int64_t>(0, int64_t{work.kv_len} - window + 1);
    for (int64_t i = seen / size; i < std::ssize(table) && i * size < end; ++i) {
      const step::BlockId block = table[static_cast<size_t>(i)];
      if (block == step::kNoBlock) {
        violation(fmt::format("step {}: slot {} sees position {} of group {}, whose block is gone",
                              plan.id, work.slot.value, seen, g));
        continue;
      }
      BlockUse& use = block_uses_[static_cast<size_t>(block)];
      use.last_use = plan.id;
      if (use.records_to > 0) {
        violation(fmt::format("step {}: slot {} runs while a record is copied to block {}", plan.id,
                              work.slot.value, block));
      }
      if ((i + 1) * size <= work.kv_len) continue;
      use.last_write = plan.id;
      const int64_t last = std::min((i + 1) * size, end) - 1;
      use.last_write_iteration =
          static_cast<int32_t>(std::max<int64_t>(0, last - work.kv_len - work.q_len + 1));
    }
  }
}

bool FakeExecutor::is_writing(const BlockUse& use) const {
  if (use.last_write <= last_collected_) return false;
  const InFlight& oldest = in_flight_.front();
  return use.last_write != oldest.plan->id || use.last_write_iteration >= oldest.collected;
}

void FakeExecutor::check_work(const step::StepPlan& plan, const step::SeqWork& work) {
  const int32_t index = work.slot.value;
  if (index < 0 || index >= options_.capacity.num_slots || work.q_len < 1 || work.kv_len < 0) {
    violation(fmt::format("step {}: slot {} runs {} tokens after {}", plan.id, index, work.q_len,
                          work.kv_len));
    return;
  }
  LaunchedSlot& slot = launched_[static_cast<size_t>(index)];
  if (slot.generation != work.generation || slot.last_step == plan.id) {
    violation(fmt::format("step {}: slot {} runs twice, or under generation {} after {}", plan.id,
                          index, work.generation, slot.generation));
  }
  const bool is_decode = work.tokens == step::TokenSource::kCarry;
  // Of fewer sequences than cohorts each is a cohort; no fewer decode than this step decodes.
  const int64_t decodes =
      std::ranges::count(plan.seqs, step::TokenSource::kCarry, &step::SeqWork::tokens);
  const auto cohorts = static_cast<step::StepId>(std::min<int64_t>(decodes, options_.num_cohorts));
  if (is_decode && slot.last_step > last_collected_ && plan.id < slot.last_step + cohorts) {
    violation(fmt::format("step {}: slot {} is of the cohort of step {}, which runs beside it",
                          plan.id, index, slot.last_step));
  }
  slot.last_step = plan.id;
  slot.blocks.resize(static_cast<size_t>(num_groups()));
  if (slot.state != step::kNoState) {
    StateUse& use = state_uses_[static_cast<size_t>(slot.state)];
    const bool is_new = std::ranges::any_of(plan.copies_before, [&](const step::ObjectCopy& copy) {
      return copy.to == step::state_ref(slot.state);
    });
    if (use.last_copy_to > copies_told_ || use.records > 0 ||
        (is_new && options_.capacity.states.slow_copies)) {
      violation(fmt::format("step {}: slot {} runs while its state is copied", plan.id, index));
    }
    use = {.last_use = plan.id, .last_write = plan.id};
  }
  append_blocks(plan, work, slot);
  const bool is_repeatable = work.q_len == 1 && work.logits == step::LogitsWanted::kLast &&
                             work.captures.empty() && !work.constrained;
  if (plan.repeat > 1 && !is_repeatable) {
    violation(fmt::format("step {}: slot {} repeats {} tokens, a capture or a mask", plan.id, index,
                          work.q_len));
  }
  check_drafts(plan, work);
  if (work.constrained && work.logits == step::LogitsWanted::kNone) {
    violation(fmt::format("step {}: slot {} has a mask for no token", plan.id, index));
  }
  const int64_t size = options_.capacity.block_size;
  const int64_t end =
      int64_t{work.kv_len} + work.q_len + step::seq_iterations(work, plan.repeat, slot.max_len) - 1;
  const int64_t num_blocks = std::ssize(slot.blocks.front());
  if (end > num_blocks * size || end >= slot.max_len) {
    violation(fmt::format("step {}: slot {} runs to {} with {} blocks and max_len {}", plan.id,
                          index, end, num_blocks, slot.max_len));
    return;
  }
  note_use(plan, work, slot, end);
  check_guess(plan, work, slot);
  if (!work.score_tokens.empty() &&
      (plan.repeat > 1 || work.score_begin < 0 ||
       work.score_begin + std::ssize(work.score_tokens) > work.q_len)) {
    violation(fmt::format("step {}: slot {} scores tokens that it does not run", plan.id, index));
  }
  const auto num_tokens = std::ssize(plan.tokens);
  const bool carries = work.tokens == step::TokenSource::kCarry;
  const int32_t drafts = work.takes_guess ? 0 : work.num_draft;
  const int64_t wanted = carries ? drafts : work.q_len;  // of the host's tokens
  if ((carries && work.q_len != 1 + work.num_draft) || work.token_begin < 0 ||
      work.token_begin + wanted > num_tokens) {
    violation(fmt::format("step {}: slot {} has no tokens to run", plan.id, index));
  }
}

}  // namespace rudder::testing
