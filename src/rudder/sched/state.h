// The scheduler's own records: a sequence, a step in flight, the step that it builds. Internal to
// the room.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rudder/base/mutants.h"
#include "rudder/kv/block_cache.h"
#include "rudder/sched/draft_record.h"
#include "rudder/sched/pace.h"
#include "rudder/sched/sequence.h"
#include "rudder/sched/step_cost.h"
#include "rudder/sched/tap_work.h"
#include "rudder/step/ids.h"
#include "rudder/step/plan.h"

namespace rudder::sched {

enum class SequenceState : uint8_t {
  kWaiting,     // holds nothing: new, or preempted and to be recomputed
  kRunning,     // holds a slot and blocks
  kPreempting,  // to give up slot and blocks once no step in flight names it
  kRetiring,    // ended or finished; likewise, then forgotten
};

struct Sequence {
  SequenceId id;
  SequenceState state = SequenceState::kWaiting;
  std::vector<int32_t> tokens;  // prompt and the output known to the host
  int32_t prompt_len = 0;
  int32_t max_len = 0;
  step::SamplingParams sampling;
  bool constrained = false;
  bool is_drafted = false;   // the proposer knows it, until it retires
  bool takes_drafts = true;  // it may be drafted for

  int32_t tenant = 0;
  int32_t priority = 0;
  uint64_t arrival = 0;
  step::StepId waiting_since = 0;    // last step planned before it was queued
  int32_t held_steps = 0;            // plans it was passed over for a prefix being computed
  int32_t passed_over = 0;           // plans in which it found no room
  int32_t found_len = 0;             // tokens that were cached when it was queued; 0 once admitted
  int64_t blocks_wanted = 0;         // for its tokens when it was queued
  bool gave_way = false;             // the last turn of its tenant's prompts was the others'
  bool was_planned = false;          // ever
  int32_t cached_prompt_tokens = 0;  // at its first admission

  step::SlotId slot;
  uint32_t generation = 0;
  bool has_carry = false;      // the slot has sampled, or will have, under this generation
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
  // For its part of the step being planned: tokens that are known, or so many of the slot's guess.
  std::vector<int32_t> draft;
  int32_t own_draft = 0;
  step::DraftTree draft_tree;  // of the tokens; empty: a chain
  int32_t guess_asked = 0;     // of the slot, by the last step planned that samples for it
  bool has_part = false;       // of what its proposer has to say at once: it tells of nothing
  DraftRecord record;
  int32_t proposed_len = 0;  // tokens that the executor's proposer has run, or will have
  int32_t scored_len = 0;    // tokens of the prompt whose logits have been, or are being, scored

  kv::BlockTables tables;  // one a KV group
  kv::Chain chain;         // its tokens as prefix blocks
  TapWork taps;

  // Tokens once every step in flight has run: position of the next token to be sampled, or with
  // drafts in flight the last that this may be.
  int32_t future_len() const { return static_cast<int32_t>(tokens.size()) + samples_pending; }
  int32_t table_len() const { return static_cast<int32_t>(tables.front().blocks.size()); }
  int32_t uncomputed() const { return future_len() - planned_len; }
  // Tokens to be run until the first of its answer, as far as is known without a look at the cache.
  // 0 where that has come: who was preempted goes on before others begin.
  int32_t need() const {
    const bool has_output = std::ssize(tokens) > prompt_len;
    return has_output ? 0 : uncomputed() - found_len;
  }

  int32_t num_draft() const { return static_cast<int32_t>(draft.size()) + own_draft; }
  // The tokens that its slot's guess may have, where the executor keeps guesses: known of one that
  // no step in flight will replace.
  int32_t guess_len() const {
    const auto known = static_cast<int32_t>(record.guess().size());
    return samples_pending > 0 ? guess_asked : std::min(known, guess_asked);
  }
  void drop_drafts() {
    draft.clear();
    own_draft = 0;
    draft_tree = {};
  }

  // Tokens that need not be computed again if their KV is found: those whose logits nobody wants.
  int32_t max_reused() const {
    const bool scores = sampling.num_prompt_logprobs >= 0 && scored_len < prompt_len - 1 &&
                        !RUDDER_MUTANT(kScoresFromCache);
    return scores ? scored_len : static_cast<int32_t>(tokens.size()) - 1;
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

// A step in flight.
struct StepRecord {
  step::StepId id = 0;
  std::shared_ptr<step::StepPlan> plan;  // immutable once launched
  std::vector<Sequence*> sequences;      // as plan->seqs; alive: a step in flight names them
  int32_t committed = 0;                 // iterations
  StepShape shape = {};                  // of the first
  int32_t num_draft = 0;
  int32_t num_accepted = 0;  // of them, so far
  int32_t num_guess = 0;     // tokens to guess of a sequence, the most
  int64_t guess_seqs = 0;    // sequences that are guessed for
  int64_t guess_tokens = 0;  // known ones that the executor's proposer runs
  bool waited = false;       // for tokens to be known, when it could have been planned before
};

// A step being built: its plan so far, and what is left to give to further sequences.
struct StepBuilder {
  step::StepPlan* plan = nullptr;
  std::vector<Sequence*>* sequences = nullptr;
  int32_t tokens_left = 0;
  int32_t num_guess = 0;   // for each sequence that drafts may follow; 0: nothing is guessed
  int64_t guess_left = 0;  // known tokens that the executor's proposer may run
  int32_t share_left = 0;  // of them, for prompts of the tenant that is served
  // Of a tenant whose prompts share its part of the step: who came first, the tokens kept for it,
  // and the prompt tokens of the step before the others', these among them. Null: they do not
  // share.
  const Sequence* first = nullptr;
  int32_t kept = 0;
  int64_t prompts_before = 0;
  bool leaves_half = false;     // of what there is for the sequence that is admitted, for others
  bool is_closed = false;       // nothing more is admitted
  StepShape shape = {};         // of its sequences so far
  int64_t elements_left = 0;    // of the capture buffer
  int64_t elements_kept = 0;    // of it, a record for each running sequence that captures
  bool elements_short = false;  // a sequence that captures waits for such a record
  int64_t running_tokens = 0;   // of sequences that run, all that the host knows
  Turnover turnover = {};       // of those of them that stream
  LongPrompt longest = {};      // of those of them that do not
  int64_t blocks_promised = 0;  // that running prompts will still take
  int32_t blocks_short = 0;     // that sequences of this step did not find
  int32_t blocks_coming = 0;    // that sequences about to go will give back
};

}  // namespace rudder::sched
