// Running: what the next step decodes, and whose blocks make room for it.
#include <algorithm>

#include "rudder/base/mutants.h"
#include "rudder/sched/overtaking.h"
#include "rudder/sched/running.h"

namespace rudder::sched {

namespace {

// How many of its drafts the sequence may run in the next step. A draft at a position that is
// captured is not run, since the host may find out, by a stop string, that the answer had ended
// before it. Where other drafts are in flight the sequence's next position is not known yet; then
// only as many are run as have the same programs at every position that they may have.
int32_t drafts_that_fit(const Sequence& sequence) {
  const int32_t num_draft = sequence.draft.count();
  if (!sequence.draft.tree.empty()) return num_draft;  // none of its positions is captured
  const int32_t unsure = sequence.run.drafts_pending;
  if (unsure == 0 || RUDDER_MUTANT(kUnsureDraftsChange)) {
    return sequence.taps.uncaptured_len(sequence.run.planned_len + 1, num_draft);
  }
  const int32_t first = sequence.run.planned_len - unsure;
  return sequence.taps.uniform_len(first, 1 + unsure + num_draft) - 1 - unsure;
}

}  // namespace

// How many iterations the next step runs (StepPlan::repeat). More than one only when nothing but
// decodes can run, since a sequence that waits or has a prompt to finish would wait longer, and
// only when no sequence is constrained, since the host knows the next mask when it knows the token.
// Not beyond the last token of the longest answer, nor past a change of what steers or captures a
// sequence, and only as far as there are blocks for all sequences now: a repeat preempts nobody.
int32_t Running::choose_repeat() const {
  if (settings_.multi_step == 1 || !waiting_.empty()) return 1;
  int32_t longest = 0;
  int32_t uniform = settings_.multi_step;
  for (const Sequence* sequence : sequences_) {
    if (sequence->state == SequenceState::kPreempting) return 1;  // it will wait
    if (sequence->state == SequenceState::kCopying) return 1;     // it waits
    if (sequence->state != SequenceState::kRunning) continue;
    if (sequence->will_end()) continue;
    if (sequence->uncomputed() > 1) return 1;
    if (sequence->run.drafts_pending > 0) return 1;  // how far it can go is not known
    if (sequence->constrained && !RUDDER_MUTANT(kConstrainedRepeated)) return 1;
    longest = std::max(longest, sequence->max_len - sequence->future_len());
    uniform = sequence->taps.uniform_len(sequence->run.planned_len, uniform);
  }
  int32_t repeat = std::max(1, std::min(uniform, longest));
  while (repeat > 1 && blocks_to_repeat(repeat) > blocks_.num_available()) repeat /= 2;
  return repeat;
}

// New blocks that all running sequences take in so many iterations.
int64_t Running::blocks_to_repeat(int32_t repeat) const {
  int64_t wanted = 0;
  for (const Sequence* sequence : sequences_) {
    if (sequence->state != SequenceState::kRunning) continue;
    const int32_t left = std::min(repeat, sequence->max_len - sequence->future_len());
    const int64_t len = blocks_.needed(int64_t{sequence->run.planned_len} + left);
    wanted += std::max<int64_t>(0, len - sequence->table_len()) * blocks_.num_groups();
  }
  return wanted;
}

// Adds to the step one token, or a token and drafts, of each sequence that decodes. Sequences that
// are preempted for their blocks rank behind the one that needs them, so the loop by index survives
// their removal.
void Running::plan_decodes(StepBuilder& builder) {
  const Cohorts cohorts = divide_decodes();
  int64_t left_of_cohort = cohorts.size;
  for (size_t i = 0; i < sequences_.size() && builder.tokens_left > 0; ++i) {
    Sequence& sequence = *sequences_[i];
    if (!can_decode(sequence, cohorts.count, builder.record.id) || left_of_cohort == 0) continue;
    if (sequence.taps.fit(sequence.run.planned_len, 1, builder.elements_left) == 0) continue;
    --left_of_cohort;
    if (sequence.draft.count() > 0) {
      decode_drafted(builder, sequence);
      continue;
    }
    const int32_t old_len = sequence.table_len();
    const int32_t left = std::max(1, sequence.max_len - sequence.future_len());
    const int32_t wanted =
        RUDDER_MUTANT(kRepeatWithoutBlocks) ? 1 : std::min(builder.plan().repeat, left);
    if (grow(builder, sequence, wanted) == wanted) builder.add(sequence, 1, old_len);
  }
}

// Divides the decoding sequences among the steps in flight (SchedSettings::num_cohorts); with fewer
// sequences than steps there are as many cohorts as sequences.
Running::Cohorts Running::divide_decodes() const {
  const int64_t most = settings_.num_cohorts;
  if (most == 1) return {.count = 1, .size = std::ssize(sequences_)};
  const int64_t decodes = std::ranges::count_if(sequences_, [](const Sequence* sequence) {
    return sequence->state == SequenceState::kRunning && sequence->uncomputed() == 1;
  });
  const bool takes_all = RUDDER_MUTANT(kCohortOfAll);
  return {.count = std::clamp<int64_t>(decodes, 1, most),
          .size = takes_all ? std::ssize(sequences_) : (decodes + most - 1) / most};
}

// Whether the sequence is of another cohort than the one that `step`, the next step, decodes: it is
// in one of the steps in flight just in front. A step further in front ends before `step` begins,
// so a sequence of it may be planned again; but not one with drafts, which are guessed behind
// tokens that are known.
bool Running::is_beside(const Sequence& sequence, int64_t num_cohorts, step::StepId step) const {
  if (settings_.num_cohorts == 1 || sequence.run.inflight == 0) return false;
  const auto distance = static_cast<int64_t>(step - sequence.run.last_step);
  return sequence.draft.is_drafted || distance < num_cohorts;
}

// Whether the step `step` may have the sequence's next token.
bool Running::can_decode(const Sequence& sequence, int64_t num_cohorts, step::StepId step) const {
  if (sequence.state != SequenceState::kRunning || sequence.uncomputed() != 1) return false;
  if (sequence.will_end() && !RUDDER_MUTANT(kPlanPastMaxLen)) return false;
  if (is_beside(sequence, num_cohorts, step) && !RUDDER_MUTANT(kCohortsOverlap)) return false;
  if (sequence.run.samples_pending == 0) return true;
  if (sequence.taps.needs_known_tokens() && !RUDDER_MUTANT(kThoughtsGuessed)) return false;
  if (!sequence.draft.is_drafted) return true;
  // Behind drafts its next position is one of several, and all of them must run the same.
  const int32_t pending = sequence.run.drafts_pending;
  const int32_t first = sequence.run.planned_len - pending;
  return pending == 0 || sequence.taps.uniform_len(first, 1 + pending) == 1 + pending;
}

// Adds the sequence's token with as many of its drafts as there are blocks for.
void Running::decode_drafted(StepBuilder& builder, Sequence& sequence) {
  const int32_t fits = 1 + drafts_that_fit(sequence);
  const int32_t old_len = sequence.table_len();
  const int32_t q_len = grow(builder, sequence, RUDDER_MUTANT(kDraftsWithoutBlocks) ? 1 : fits);
  if (q_len == 0) return;
  const int32_t kept = RUDDER_MUTANT(kDraftsWithoutBlocks) ? sequence.draft.count() : q_len - 1;
  sequence.draft.keep(kept);
  builder.add(sequence, 1 + kept, old_len);
}

int32_t Running::grow(StepBuilder& builder, Sequence& sequence, int32_t q_len) {
  const int32_t planned_len = sequence.run.planned_len;
  const int32_t wanted = blocks_.needed(int64_t{planned_len} + q_len);
  const auto room = [&] {
    const int64_t held = int64_t{sequence.table_len()} * blocks_.block_size();
    return static_cast<int32_t>(std::min<int64_t>(held - planned_len, q_len));
  };
  while (sequence.table_len() < wanted) {
    if (blocks_.extend(sequence)) continue;
    if (room() > 0 || !make_room(builder, sequence)) break;
  }
  return RUDDER_MUTANT(kBlockEdgeOffByOne) ? q_len : room();
}

// Preempts sequences that rank behind `wants` until a block of each group is available now, or as
// many are coming back at commits as this step's sequences miss. True when they are available now.
bool Running::make_room(StepBuilder& builder, const Sequence& wants) {
  const int32_t num_groups = blocks_.num_groups();
  builder.blocks_short += num_groups;
  if (builder.blocks_short == num_groups) {
    for (const Sequence* sequence : sequences_) {
      if (!sequence->is_begun() || sequence->will_end()) {
        builder.blocks_coming += blocks_.held_alone(*sequence);
      }
    }
  }
  while (blocks_.num_available() < num_groups) {
    if (builder.blocks_coming >= builder.blocks_short) return false;
    Sequence* victim = pick_victim(wants);
    if (victim == nullptr) return false;
    if (victim->run.inflight > 0) builder.blocks_coming += blocks_.held_alone(*victim);
    builder.is_closed = builder.is_closed || victim->run.inflight > 0;
    preempt(*victim);
  }
  builder.blocks_short -= num_groups;
  return true;
}

// The running sequence that is preempted next: the last by rank, but a small one that went past
// others only where there is no other. Never one that ranks before `wants`, so the first of all
// always goes on. Null: there is none.
Sequence* Running::pick_victim(const Sequence& wants) const {
  Sequence* small = nullptr;
  for (auto it = sequences_.rbegin(); it != sequences_.rend() && *it != &wants; ++it) {
    if ((*it)->state != SequenceState::kRunning || (*it)->will_end()) continue;
    const bool is_small =
        (*it)->wait.overtook && blocks_.held_alone(**it) <= most_of_a_small_one(blocks_);
    if (!is_small) return *it;
    if (small == nullptr) small = *it;
  }
  return small;
}

}  // namespace rudder::sched
