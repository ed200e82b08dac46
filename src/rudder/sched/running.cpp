// Running: who holds a slot, from begin() until slot and blocks are given back. What decodes is
// running_decodes.cpp's.
#include "rudder/sched/running.h"

#include <algorithm>

#include "rudder/base/check.h"
#include "rudder/base/mutants.h"
#include "rudder/sched/integrity.h"

namespace rudder::sched {

Running::Running(const step::Capacity& capacity, const SchedSettings& settings, Blocks& blocks,
                 WaitingLines& waiting, Copies& copies)
    : capacity_(capacity),
      settings_(settings),
      blocks_(blocks),
      waiting_(waiting),
      copies_(copies),
      slots_(capacity.num_slots) {
  sequences_.reserve(static_cast<size_t>(capacity.num_slots));
}

void Running::begin(Sequence& sequence, int32_t num_cached, step::StepPlan& plan) {
  sequence.run.begin(num_cached);
  const bool is_copied_to = capacity_.states.slow_copies && !plan.copies_before.empty() &&
                            plan.copies_before.back().to == step::state_ref(sequence.object);
  const bool is_loaded = sequence.tier.loads_left > 0;
  const bool waits = (is_copied_to || is_loaded) && !RUDDER_MUTANT(kStepsWhileCopying);
  if (is_copied_to) copies_.begin(sequence);
  if (is_loaded) sequence.run.is_copied_to = true;
  sequence.state = waits ? SequenceState::kCopying : SequenceState::kRunning;
  ++num_running_;
  sequences_.insert(std::ranges::upper_bound(sequences_, &sequence, ByRank{}), &sequence);
  sequence.run.slot = slots_.take();
  sequence.run.generation = slots_.generation(sequence.run.slot);
  open_slot(sequence, plan);
}

void Running::open_slot(const Sequence& sequence, step::StepPlan& plan) const {
  step::SlotEdit& edit = plan.slots.emplace_back();
  edit.slot = sequence.run.slot;
  edit.generation = sequence.run.generation;
  edit.sampling = sequence.sampling;
  for (const cache::BlockTable& table : sequence.tables) edit.blocks.push_back(table.blocks);
  edit.state = sequence.object;
  edit.prompt_len = sequence.prompt_len;
  edit.num_output = static_cast<int32_t>(sequence.tokens.size()) - sequence.prompt_len;
  edit.max_len = sequence.max_len;
  const bool looks_up = capacity_.drafts.keeps_guesses && !RUDDER_MUTANT(kNothingToLookUp);
  if (sequence.sampling.needs_history() || looks_up) {
    edit.history = sequence.tokens;
    edit.history_prompt_len = sequence.prompt_len;
  }
}

void Running::note_result(const StepRecord& record, size_t index, const step::SeqResult& result,
                          int32_t accepted) {
  const step::SeqWork& work = record.plan->seqs[index];
  const Sequence& sequence = *record.sequences[index];
  RunState& run = record.sequences[index]->run;
  const int32_t repeat = record.plan->repeat;
  if (record.committed == repeat) --run.inflight;
  if (work.logits != step::LogitsWanted::kNone &&
      record.committed <= step::seq_iterations(work, repeat, sequence.max_len)) {
    run.samples_pending -= 1 + work.most_accepted();
  }
  run.drafts_pending -= work.most_accepted();
  if (!RUDDER_MUTANT(kRejectedKvCounted)) run.planned_len -= work.most_accepted() - accepted;
  if (!result.masked) {
    run.written_len += record.committed > 1 ? 1 : work.q_len - work.num_draft + accepted;
  }
}

void Running::publish(const StepRecord& record, size_t index, const step::SeqResult& result,
                      int32_t accepted) {
  Sequence& sequence = *record.sequences[index];
  cache::BlockCache& cache = blocks_.cache();
  const bool is_good = publish_blocks(record, index, result, accepted);
  const bool is_over = record.committed == record.plan->repeat && !sequence.run.is_copied_to;
  if (is_over) blocks_.end_restore(sequence);
  for (const Checkpoint& made : record.checkpoints) {
    if (made.seq != index) continue;
    // The state of a late result may be behind tokens that the host has dropped.
    if (is_good && made.num_blocks * capacity_.block_size <= sequence.run.computed_len) {
      cache.share_checkpoint(sequence.chain, sequence.tokens, made.num_blocks, sequence.object,
                             made.state);
    }
    cache.release_state(made.state);
  }
}

// kv.I5, kv.I7. False: what the step wrote for the sequence is of no use to others.
bool Running::publish_blocks(const StepRecord& record, size_t index, const step::SeqResult& result,
                             int32_t accepted) {
  Sequence& sequence = *record.sequences[index];
  RunState& run = sequence.run;
  cache::BlockCache& cache = blocks_.cache();
  if (result.end == step::SeqEnd::kNumerical && !RUDDER_MUTANT(kPublishNumerical)) {
    cache.distrust(sequence.tables, sequence.object);
    return false;
  }
  if (result.masked) return false;
  // The KV of a late result is good, but the host may have dropped the token it is of.
  const int32_t num_draft = record.plan->seqs[index].num_draft;
  const int32_t rejected = RUDDER_MUTANT(kPublishRejected) ? num_draft - accepted : 0;
  run.computed_len =
      std::min(run.written_len + rejected, static_cast<int32_t>(sequence.tokens.size()));
  cache.publish(sequence.chain, sequence.tokens, sequence.tables, run.computed_len);
  // kv.I14. What later steps run begins here.
  const int32_t reached = RUDDER_MUTANT(kWindowFreedEarly) ? run.planned_len : run.computed_len;
  if (record.committed == record.plan->repeat) cache.release_passed(sequence.tables, reached);
  sequence.taps.note_computed(run.computed_len);
  return true;
}

// One whose records failed to come only waits again: it had not run.
void Running::preempt(Sequence& sequence) {
  if (!sequence.tier.has_failed) ++preemptions_;
  sequence.state = SequenceState::kPreempting;
  --num_running_;
  release_if_idle(sequence);
}

void Running::end_load(Sequence& sequence) {
  if (sequence.state == SequenceState::kCopying && sequence.tier.has_failed) {
    preempt(sequence);
  } else if (sequence.state == SequenceState::kCopying) {
    sequence.state = SequenceState::kRunning;
    blocks_.cache().publish(sequence.chain, sequence.tokens, sequence.tables,
                            sequence.run.computed_len);
  }
}

void Running::preempt_all() {
  RUDDER_CHECK(copies_.size() == 0, "{} copies are on their way", copies_.size());
  while (!sequences_.empty()) preempt(*sequences_.back());
}

void Running::retire(Sequence& sequence) {
  if (sequence.is_begun()) --num_running_;
  sequence.state = SequenceState::kRetiring;
  if (sequence.run.is_copied_to && RUDDER_MUTANT(kFreedWhileCopying)) {
    blocks_.take_state_back(sequence);
  }
  if (sequence.tier.loads_left > 0 && RUDDER_MUTANT(kFreedWhileLoading)) {
    blocks_.cache().release(sequence.chain, sequence.tables);
  }
  if (RUDDER_MUTANT(kFreeInFlight)) blocks_.cache().release(sequence.chain, sequence.tables);
}

bool Running::release_if_idle(Sequence& sequence) {
  if (!sequence.is_idle()) return false;
  if (sequence.state == SequenceState::kRetiring) {
    release(sequence);
    return true;
  }
  if (sequence.state == SequenceState::kPreempting) {
    release(sequence);
    waiting_.enqueue(sequence);
  }
  return false;
}

void Running::release(Sequence& sequence) {
  cache::BlockCache& cache = blocks_.cache();
  if (RUDDER_MUTANT(kDoubleFree)) {
    cache::BlockTables again = sequence.tables;
    cache.release(sequence.chain, again);
  }
  if (RUDDER_MUTANT(kMissedDecrefOnPreempt) && sequence.state == SequenceState::kPreempting &&
      !sequence.tables.back().held().empty()) {
    sequence.tables.back().blocks.pop_back();
  }
  if (RUDDER_MUTANT(kPreemptDropsToken) && sequence.state == SequenceState::kPreempting &&
      static_cast<int32_t>(sequence.tokens.size()) > sequence.prompt_len) {
    sequence.tokens.pop_back();
  }
  cache.release(sequence.chain, sequence.tables);
  blocks_.take_state_back(sequence);
  sequence.run.end();
  sequence.draft.end();
  sequence.tier.end();
  slots_.give_back(sequence.run.slot);
  sequences_.erase(std::ranges::find(sequences_, &sequence));
}

void Running::drop_all() {
  for (Sequence* sequence : sequences_) {
    blocks_.cache().release(sequence->chain, sequence->tables);
    blocks_.take_state_back(*sequence);
    slots_.give_back(sequence->run.slot);
  }
  sequences_.clear();
  copies_.drop_all();
  num_running_ = 0;
}

Result<void> Running::check() const {
  const auto num_running = std::ranges::count_if(sequences_, &Sequence::is_begun);
  if (num_running != num_running_) {
    return fail(ErrorCode::kInternal, "sequences are miscounted");
  }
  if (!std::ranges::is_sorted(sequences_, ByRank{})) {
    return fail(ErrorCode::kInternal, "running sequences are out of order");
  }
  std::vector<int32_t> uses(static_cast<size_t>(capacity_.num_slots), 0);
  for (const int32_t slot : slots_.free()) ++uses[static_cast<size_t>(slot)];
  for (const Sequence* sequence : sequences_) {
    ++uses[static_cast<size_t>(sequence->run.slot.value)];
    if (slots_.generation(sequence->run.slot) != sequence->run.generation) {
      return broken(*sequence, "its slot has another generation");
    }
  }
  if (std::ranges::any_of(uses, [](int32_t n) { return n != 1; })) {
    return fail(ErrorCode::kInternal, "a slot is lost or used twice");
  }
  return {};
}

}  // namespace rudder::sched
