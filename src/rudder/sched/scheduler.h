// Scheduler: takes sequences and step results, gives plans and tokens. Continuous batching: each
// step has the decodes, then prompts (chunks of running ones, then admissions), which tenants share
// fairly, under one token budget. Only the engine thread calls it; it never blocks and never sees
// an executor. Normative text: docs/contracts/step.md and docs/contracts/kv.md.
//
// It owns every sequence and the steps in flight, and asks four objects in turn. Drafts says what
// is guessed and verified, and whether the step waits for that; Running says what decodes, and
// gives slots and blocks back; Prompts says which prompts run and who is admitted; Pace says what
// steps take. Below them are stores: Blocks (the KV bookkeeping), WaitingLines, Copies, for which
// sequences wait, and Tiers, where cached prefixes lie behind the device. StepBuilder writes what
// the four choose into the plan.
//
// The caller's loop: while iterations_in_flight() < max_in_flight and plan() gives a step, launch
// it; then collect the oldest iteration and commit it. A sequence ends in commit() (the output's
// `end`) or by finish().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/sched/blocks.h"
#include "rudder/sched/copies.h"
#include "rudder/sched/drafts.h"
#include "rudder/sched/pace.h"
#include "rudder/sched/prompts.h"
#include "rudder/sched/proposer.h"
#include "rudder/sched/running.h"
#include "rudder/sched/sequence.h"
#include "rudder/sched/settings.h"
#include "rudder/sched/spare_records.h"
#include "rudder/sched/state.h"
#include "rudder/sched/stats.h"
#include "rudder/sched/step_record.h"
#include "rudder/sched/tiers.h"
#include "rudder/sched/waiting_lines.h"
#include "rudder/step/executor.h"
#include "rudder/step/plan.h"
#include "rudder/step/result.h"

namespace rudder::sched {

class Scheduler {
 public:
  // Drafts come from the executor where the capacity says so, else from `proposer`; without either
  // no sequence has any, nor where the capacity takes none.
  Scheduler(const step::Capacity& capacity, const SchedSettings& settings,
            DraftProposer* proposer = nullptr);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // The largest max_len that add() takes: a lone sequence of it fits the pool.
  int32_t max_len_limit() const { return max_len_limit_; }

  // Queues a sequence; it can be part of the next plan(). kInvalidArgument for an empty prompt, a
  // max_len that is not above the prompt's length or is above max_len_limit(), or a capture whose
  // record of one token no step has room for. Ids are never reused: a known id is a broken
  // invariant.
  Result<void> add(NewSequence sequence);

  // Ends a sequence from the host: a cancel, a stop string. It gets no further output; tokens in
  // flight are dropped. What it computed stays in the prefix cache. An unknown id does nothing.
  void finish(SequenceId id);

  // Plans no more drafts of the sequence: they are not worth their masks. An unknown id does
  // nothing.
  void stop_drafting(SequenceId id);

  // The next step, now in flight until its commit(). Takes along what is in `edits`, if anything:
  // edits alone make a step too. Null when nothing can run before a commit or an add: then either a
  // step is in flight or no sequence is left.
  std::shared_ptr<const step::StepPlan> plan(TableEdits* edits = nullptr);

  // The next step that measures the device; null: what decodes take is known, or nobody asks. All
  // trials run before the first add(), as steps of plan() do, each committed by commit_trial().
  std::shared_ptr<const step::StepPlan> plan_trial();
  void commit_trial(const step::StepResult& result);

  // The last plan() gave none because drafts need tokens that are in flight: they are worth it.
  bool is_holding() const { return is_holding_; }
  // The device was idle for so long before the launch of the last step, which was held so.
  void note_idle(int64_t us) { drafts_.note_idle(us); }

  // Sequences that the last plan() ran for the first time.
  const std::vector<SequenceId>& first_planned() const { return prompts_.first_planned(); }

  // Sequences that are constrained in the last plan(), in the order of StepPlan.seqs: whose
  // masks its step waits for.
  const std::vector<ConstrainedSequence>& constrained() const { return lists_.constrained; }
  // The same behind the commits of all steps in front of it: what guesses they take is known, and
  // they have them.
  const std::vector<ConstrainedSequence>& learn_drafts();

  // Takes the result of the oldest iteration in flight and appends to `out` what sequences got. The
  // outputs refer to `result`, and are valid as long as it lives and until the next commit.
  void commit(const step::StepResult& result, std::vector<SequenceOutput>* out);

  // Sequences of the last committed step whose captured tokens count: not those that were late
  // or masked.
  const std::vector<CapturedSequence>& captured_sequences() const { return lists_.captured; }

  // Some sequence has neither ended nor been finished, or a copy is on its way.
  bool has_work() const {
    return waiting_.size() + running_.num_running() > 0 || copies_.size() > 0 ||
           tiers_.wants_plan();
  }
  // No sequence, no step and no copy in flight: every block is free or cached.
  bool idle() const { return sequences_.empty() && in_flight_.empty() && tiers_.size() == 0; }
  int32_t steps_in_flight() const { return static_cast<int32_t>(in_flight_.size()); }
  int32_t iterations_in_flight() const;

  // The executor is dead: forgets every step in flight, every sequence and the prefix cache.
  void drop_all();
  // With no step in flight: every sequence that runs waits again and is computed anew, and no
  // prefix is cached; so later plans read nothing that earlier ones wrote (step::Executor). With
  // `identity` keys of prefix blocks are those of that model from now on.
  void start_afresh(const std::string* identity = nullptr);
  // Forgets cached prefixes. What runs goes on with its blocks, which are not shared again.
  void reset_prefix_cache();
  // Where cached prefixes lie: what was stored before, who was told of them, whether any is copied.
  Tiers& tiers() { return tiers_; }

  SchedStats stats() const;
  int32_t max_running() const { return settings_.max_num_seqs; }  // any thread

  // Recomputes every invariant of docs/contracts/kv.md from the sequences; O(blocks + tokens).
  // Names the first that does not hold. For the simulator and for debugging.
  Result<void> check_integrity() const;

 private:
  void commit_sequence(StepRecord& record, size_t index, const step::SeqResult& result,
                       std::vector<SequenceOutput>* out);
  void take_tokens(StepRecord& record, size_t index, const step::SeqResult& result,
                   int32_t num_draft, int32_t accepted);
  void note_planned(StepRecord record, const StepShape& shape);
  void retire(Sequence& sequence);
  void forget_if_idle(Sequence& sequence);

  const step::Capacity capacity_;
  const SchedSettings settings_;
  const int32_t max_len_limit_;

  // In the order in which they may refer to each other.
  Blocks blocks_;
  WaitingLines waiting_;
  Copies copies_;
  Tiers tiers_;
  Pace pace_;
  Running running_;
  Drafts drafts_;
  Prompts prompts_;

  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  uint64_t next_arrival_ = 1;
  std::vector<StepRecord> in_flight_;  // oldest first; a handful
  SpareRecords spare_;
  StepRecord last_;  // committed last; its outputs refer to its plan
  step::StepId last_step_ = 0;
  bool is_holding_ = false;  // the last plan() gave none, for the sake of drafts
  struct Lists {
    std::vector<ConstrainedSequence> constrained;  // of the last plan
    std::vector<CapturedSequence> captured;        // of the last commit
  };
  Lists lists_;
  SchedStats counters_;  // those of steps and tokens
};

}  // namespace rudder::sched
