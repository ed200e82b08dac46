// Sequence: the scheduler's own record of one, from add() to its last step. What one object of the
// scheduler alone decides is that object's part of it (WaitState, RunState, DraftState); the others
// read it. Internal to the room; engine thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "rudder/base/mutants.h"
#include "rudder/cache/block_cache.h"
#include "rudder/sched/draft_record.h"
#include "rudder/sched/sequence.h"
#include "rudder/sched/tap_work.h"
#include "rudder/step/draft_tree.h"
#include "rudder/step/ids.h"
#include "rudder/step/sampling.h"

namespace rudder::sched {

enum class SequenceState : uint8_t {
  kWaiting,     // holds nothing: new, or preempted and to be recomputed
  kCopying,     // holds a slot and blocks, and waits for what it goes on from: in no plan yet
  kRunning,     // holds a slot and blocks
  kPreempting,  // to give up slot and blocks once no step in flight names it
  kRetiring,    // ended or finished; likewise, then forgotten
};

// What WaitingLines and Prompts keep of a sequence.
struct WaitState {
  step::StepId waiting_since = 0;    // last step planned before it was queued
  int32_t held_steps = 0;            // plans it was passed over for a prefix being computed
  int32_t passed_over = 0;           // plans in which it found no room
  int32_t found_len = 0;             // tokens that were cached when it was queued; 0 once admitted
  int64_t blocks_wanted = 0;         // for its tokens when it was queued
  bool overtook = false;             // it was begun past a large one, or without the headroom
  bool gave_way = false;             // the last turn of its tenant's prompts was the others'
  bool was_planned = false;          // ever
  int32_t cached_prompt_tokens = 0;  // at its first admission
  int32_t cached_host_tokens = 0;    // of them, in host memory
  int32_t cached_disk_tokens = 0;    // and in files
};

// What Running keeps of a sequence: its slot, and how far it has come.
struct RunState {
  step::SlotId slot;
  uint32_t generation = 0;
  bool has_carry = false;      // the slot has sampled, or will have, under this generation
  bool is_copied_to = false;   // a copy to its state is on its way, which outlasts its step
  int32_t inflight = 0;        // steps in flight that name it
  step::StepId last_step = 0;  // that names it
  // What steps in flight give it if it does not end and all their drafts are right. A commit takes
  // back what rejected drafts had promised.
  int32_t samples_pending = 0;  // tokens that they sample for it
  int32_t drafts_pending = 0;   // drafts of it that they may find right
  int32_t planned_len = 0;      // tokens whose KV is written once all of them have run
  int32_t reserved_len = 0;     // the most that planned_len was: its blocks hold so many tokens
  int32_t written_len = 0;      // tokens whose KV the device has written, as of the last commit
  int32_t computed_len = 0;     // those of them that the host knows: their KV is written for sure
  int32_t scored_len = 0;       // tokens of the prompt whose logits have been, or are being, scored

  // Its slot is open, and so many tokens are in its blocks already.
  void begin(int32_t num_cached) {
    reserved_len = num_cached;
    planned_len = num_cached;
    computed_len = num_cached;
    written_len = num_cached;
  }
  // Its slot and its blocks are given back.
  void end() {
    begin(0);
    has_carry = false;
  }
};

// What Drafts keeps of a sequence.
struct DraftState {
  bool is_drafted = false;   // the proposer knows it, until it retires
  bool takes_drafts = true;  // it may be drafted for
  // For its part of the step being planned: tokens that are known, or so many of the slot's guess.
  std::vector<int32_t> tokens;
  int32_t own = 0;
  step::DraftTree tree;      // of the tokens; empty: a chain
  int32_t guess_asked = 0;   // of the slot, by the last step planned that samples for it
  int32_t proposed_len = 0;  // known tokens that the executor's proposer has run, or will have
  // The last step planned that samples for it guesses behind that: where guesses stay in slots, the
  // proposer runs whatever comes of the step.
  bool is_followed = false;
  DraftRecord record;

  int32_t count() const { return static_cast<int32_t>(tokens.size()) + own; }
  void drop() {
    tokens.clear();
    own = 0;
    tree = {};
  }
  // The first so many of its drafts are left.
  void keep(int32_t count) {
    if (own > 0) {
      own = count;
    } else {
      tokens.resize(static_cast<size_t>(count));
      tree = tree.first(count);
    }
  }
  // Its slot is given back: nothing is left of what the executor's proposer has run.
  void end() {
    if (!RUDDER_MUTANT(kProposedLenKept)) proposed_len = 0;
    guess_asked = 0;
    is_followed = false;
  }
};

// What Tiers keeps of a sequence.
struct TierWork {
  int32_t declined = 0;  // tokens that were found last, and take less time to compute
  // Its shared blocks that were noted, and the node of the last of them.
  int32_t noted = 0;
  cache::NodeRef node;
  // Of the records that are copied to it: those on their way, its tokens in front of them, and by
  // tier the tokens that they have.
  int32_t loads_left = 0;
  int32_t loaded_from = 0;
  bool is_first = false;  // of its first admission: they count as hits
  bool has_failed = false;
  int32_t host_tokens = 0;
  int32_t disk_tokens = 0;

  // Its blocks are given back.
  void end() {
    has_failed = false;
    noted = 0;
    node = {};
  }
};

struct Sequence {
  SequenceId id;
  SequenceState state = SequenceState::kWaiting;
  std::vector<int32_t> tokens;  // prompt and the output known to the host
  int32_t prompt_len = 0;
  int32_t max_len = 0;
  step::SamplingParams sampling;
  bool constrained = false;
  int32_t tenant = 0;
  int32_t priority = 0;
  uint64_t arrival = 0;

  cache::BlockTables tables;  // one a KV group
  cache::Chain chain;         // its tokens as prefix blocks
  // Where the executor has states: its own, from its slot's opening on, and the checkpoint that is
  // copied there, until that step is committed.
  cache::StateId object = cache::kNoState;
  cache::StateId restored_from = cache::kNoState;
  // Behind the first turn of its prompt and behind the last that is whole: others may go on there.
  std::vector<int32_t> turn_ends;
  TapWork taps;
  WaitState wait;
  RunState run;
  DraftState draft;
  TierWork tier;

  // Tokens once every step in flight has run: position of the next token to be sampled, or with
  // drafts in flight the last that this may be.
  int32_t future_len() const { return static_cast<int32_t>(tokens.size()) + run.samples_pending; }
  int32_t table_len() const { return static_cast<int32_t>(tables.front().blocks.size()); }
  // Tokens whose KV is there for others to share, or soon will be without being computed.
  int32_t known_len() const {
    const bool is_loading = state == SequenceState::kCopying && tier.loads_left > 0;
    return is_loading ? tier.loaded_from : run.computed_len;
  }
  int32_t uncomputed() const { return future_len() - run.planned_len; }
  // It has a seat: it was begun, and neither preempted nor ended since.
  bool is_begun() const {
    return state == SequenceState::kRunning || state == SequenceState::kCopying;
  }
  // Neither a step in flight nor a copy reads or writes what it holds.
  bool is_idle() const { return run.inflight == 0 && !run.is_copied_to; }
  // Its next step decodes, as far as it has one.
  bool decodes() const {
    return state == SequenceState::kRunning && run.has_carry && uncomputed() == 1;
  }
  // Tokens to be run until the first of its answer, as far as is known without a look at the cache.
  // 0 where that has come: who was preempted goes on before others begin.
  int32_t need() const {
    const bool has_output = std::ssize(tokens) > prompt_len;
    return has_output ? 0 : uncomputed() - wait.found_len;
  }

  // The tokens that its slot's guess may have, where the executor keeps guesses: known of one that
  // no step in flight will replace.
  int32_t guess_len() const {
    const auto known = static_cast<int32_t>(draft.record.guess().size());
    return run.samples_pending > 0 ? draft.guess_asked : std::min(known, draft.guess_asked);
  }
  // Not while what a token runs follows from the one before it: a draft's is not known.
  bool takes_drafts() const {
    return draft.is_drafted && draft.takes_drafts && taps.takes_drafts();
  }

  // Tokens that need not be computed again if their KV is found: those whose logits nobody wants.
  int32_t max_reused() const {
    const bool scores = sampling.num_prompt_logprobs >= 0 && run.scored_len < prompt_len - 1 &&
                        !RUDDER_MUTANT(kScoresFromCache);
    return scores ? run.scored_len : static_cast<int32_t>(tokens.size()) - 1;
  }

  // Its last token is being sampled, or may be: nothing is left to plan before a commit.
  bool will_end() const { return future_len() >= max_len; }

  bool ranks_before(const Sequence& other) const {
    if (priority != other.priority) return priority < other.priority;
    return arrival < other.arrival;
  }
};

struct ByRank {
  bool operator()(const Sequence* a, const Sequence* b) const { return a->ranks_before(*b); }
};

// Of those of one priority, who gives its next token soonest.
struct ByNeed {
  bool operator()(const Sequence* a, const Sequence* b) const {
    if (a->priority != b->priority) return a->priority < b->priority;
    if (a->need() != b->need()) return a->need() < b->need();
    return a->arrival < b->arrival;
  }
};

}  // namespace rudder::sched
