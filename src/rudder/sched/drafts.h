// Drafts (speculative decoding): which guessed tokens the next step verifies, how many the
// executor's proposer is to guess, and when a step waits for tokens to be known. It asks whoever
// proposes, keeps the records of what came of it (DraftState::record), and lets DraftPacer say what
// pays. Scheduler owns it. Internal to the room; engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "rudder/sched/blocks.h"
#include "rudder/sched/draft_pacer.h"
#include "rudder/sched/proposer.h"
#include "rudder/sched/sequence.h"
#include "rudder/sched/settings.h"
#include "rudder/sched/state.h"
#include "rudder/sched/stats.h"
#include "rudder/sched/step_cost.h"
#include "rudder/sched/step_record.h"
#include "rudder/sched/waiting_lines.h"
#include "rudder/step/draft_caps.h"
#include "rudder/step/plan.h"
#include "rudder/step/result.h"

namespace rudder::sched {

class Running;
struct StepBuilder;

class Drafts {
 public:
  // The stores and other parts of the scheduler that it reads; blocks for guesses it takes.
  struct Parts {
    Blocks& blocks;
    const Running& running;
    const WaitingLines& waiting;
    const StepCost& cost;
  };
  // Drafts come from the executor where its `caps` say so, else from `proposer`; without either no
  // sequence has any. All of them outlive this.
  Drafts(const step::DraftCaps& caps, const SchedSettings& settings, DraftProposer* proposer,
         const Parts& parts);

  bool has_proposer() const { return proposer_ != nullptr || caps_.guesses; }
  // A sequence is added; `added` is it as it was asked for.
  void begin(const NewSequence& added, Sequence& sequence);
  // It has ended, or is forgotten.
  void end(Sequence& sequence);

  // No step is planned now: drafts need tokens that the steps in flight sample. Also chooses what
  // is guessed behind the next step.
  bool holds(std::span<const StepRecord> in_flight);
  // Sets what the next step verifies (DraftState). True when there is anything.
  bool propose();
  // Tokens that the executor's proposer guesses for each sequence of the next step.
  int32_t num_guess() const { return num_guess_; }
  // What the executor's proposer does behind this part of a step, of which all but blocks is known.
  void add_guess(StepBuilder& builder, Sequence& sequence, step::SeqWork& work);

  // An iteration gave the sequence tokens: of its drafts, `num_draft` of which were there, the
  // first `accepted` were right. The sequence has the tokens already.
  void note_result(Sequence& sequence, const step::SeqWork& work, const step::SeqResult& result,
                   int32_t num_draft, int32_t accepted);
  // The iteration of this step that record.committed counts last is over.
  void note_step(const StepRecord& record, const step::StepResult& result);
  // A step that was held found the device idle for so long.
  void note_idle(int64_t us) { pacer_.note_idle(us); }
  void add_to(SchedStats* stats) const;

 private:
  // Who is drafted for, and who waits for whom.
  bool has_pending_guess() const;
  bool waits_for_guess() const;
  bool holds_for_end(std::span<const StepRecord> in_flight) const;

  // Every draft that there is.
  bool take_every_draft();
  int64_t most_drafts(const Sequence& sequence) const;
  void take_guess(Sequence& sequence, int64_t most) const;
  void take_proposed(Sequence& sequence, int64_t most);
  void ask_proposer(const Sequence& sequence, int64_t most, Draft* draft);

  // The drafts that pay.
  bool choose();
  StepShape collect_offers(size_t num_cohorts);
  void offer(Sequence& sequence);
  bool take_chosen();
  void take_offer(const DraftPacer::Offer& offer, Sequence& sequence, int64_t tokens_left);
  int32_t choose_guess();

  // Trees.
  bool takes_tree(const Sequence& sequence, int32_t depth) const;
  const step::DraftTree& guess_tree(const Sequence& sequence) const;
  uint64_t rows_to_verify(const Sequence& sequence, size_t most) const;
  void take_rows(Sequence& sequence, uint64_t rows) const;

  int32_t grow_for_guess(int64_t promised, Sequence& sequence, int32_t behind, int32_t most);
  void note_guess(Sequence& sequence, const step::SeqWork& work, const step::SeqResult& result);

  const step::DraftCaps& caps_;
  const SchedSettings& settings_;
  DraftProposer* const proposer_;  // null: no drafts, or the executor's
  Blocks& blocks_;
  const Running& running_;
  const WaitingLines& waiting_;
  const StepCost& cost_;

  DraftPacer pacer_;
  bool is_drafting_ = false;                 // the last decodes planned had drafts
  bool pays_ = false;                        // as the last look at all sequences found
  size_t num_looks_ = 0;                     // at sequences, for what drafts they would have
  std::vector<DraftPacer::Offer> offers_;    // of the last look
  std::vector<Sequence*> offered_;           // whose they are
  int32_t num_guess_ = 0;                    // for each sequence of the next step
  std::vector<const DraftRecord*> records_;  // scratch of choose_guess()
  SchedStats counters_;                      // those of drafts
};

// The drafts of a sequence that a part of a step had: of a guess that was not known when it was
// planned, as many as it turned out to have, as far as anyone takes its tokens.
int32_t drafts_known(const Sequence& sequence, const step::SeqWork& work);

// The sequence in a plan that it is constrained in, with its drafts.
ConstrainedSequence constrained_of(const Sequence& sequence);
// Its drafts that were the slot's guess are known now.
void fill_in_guess(const Sequence& sequence, ConstrainedSequence* constrained);

}  // namespace rudder::sched
