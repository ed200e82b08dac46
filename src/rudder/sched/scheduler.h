// Scheduler: takes sequences and step results, gives plans and tokens. Continuous batching: each
// step has the decodes, then prompts (chunks of running ones, then admissions), which tenants share
// fairly, under one token budget. It
// owns the KV bookkeeping and the slots. Only the engine thread calls it; it never blocks and never
// sees an executor. Normative text: docs/contracts/step.md and docs/contracts/kv.md.
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
#include "rudder/kv/block_cache.h"
#include "rudder/sched/answer_length.h"
#include "rudder/sched/draft_pacer.h"
#include "rudder/sched/fair_shares.h"
#include "rudder/sched/pace.h"
#include "rudder/sched/proposer.h"
#include "rudder/sched/sequence.h"
#include "rudder/sched/settings.h"
#include "rudder/sched/spare_records.h"
#include "rudder/sched/state.h"
#include "rudder/sched/stats.h"
#include "rudder/sched/trials.h"
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
  void note_idle(int64_t us) { pacer_.note_idle(us); }

  // Sequences that the last plan() ran for the first time.
  const std::vector<SequenceId>& first_planned() const { return first_planned_; }

  // Sequences that are constrained in the last plan(), in the order of StepPlan.seqs: whose
  // masks its step waits for.
  const std::vector<ConstrainedSequence>& constrained() const { return constrained_; }
  // The same behind the commits of all steps in front of it: what guesses they take is known, and
  // they have them.
  const std::vector<ConstrainedSequence>& learn_drafts();

  // Takes the result of the oldest iteration in flight and appends to `out` what sequences got. The
  // outputs refer to `result`, and are valid as long as it lives and until the next commit.
  void commit(const step::StepResult& result, std::vector<SequenceOutput>* out);

  // Sequences of the last committed step whose captured tokens count: not those that were late
  // or masked.
  const std::vector<CapturedSequence>& captured_sequences() const { return captured_sequences_; }

  // Some sequence has neither ended nor been finished.
  bool has_work() const { return num_waiting() + num_running_ > 0; }
  // No sequence, no step in flight: every block is free or cached.
  bool idle() const { return sequences_.empty() && in_flight_.empty(); }
  int32_t steps_in_flight() const { return static_cast<int32_t>(in_flight_.size()); }
  int32_t iterations_in_flight() const;

  // The executor is dead: forgets every step in flight, every sequence and the prefix cache.
  void drop_all();
  // With no step in flight: every sequence that runs waits again and is computed anew, and no
  // prefix is cached; so later plans read nothing that earlier ones wrote (step::Executor).
  void start_afresh();
  // Forgets cached prefixes. What runs goes on with its blocks, which are not shared again.
  void reset_prefix_cache() { cache_.forget_all(); }

  SchedStats stats() const;
  int32_t max_running() const { return settings_.max_num_seqs; }  // any thread
  // What the watcher of the prefix cache was told of and is still there.
  std::vector<kv::CachedBlock> watched_blocks() const { return cache_.watched(); }

  // Recomputes every invariant of docs/contracts/kv.md from the sequences; O(blocks + tokens).
  // Names the first that does not hold. For the simulator and for debugging.
  Result<void> check_integrity() const;

 private:
  enum class Admission : uint8_t { kAdmitted, kHeld, kNoRoom, kNoTime };
  struct Cohorts {
    int64_t count = 1;
    int64_t size = 0;  // sequences that a step decodes at most
  };

  // plan_drafts.cpp
  bool has_proposer() const { return proposer_ != nullptr || capacity_.guesses; }
  bool has_pending_guess() const;
  bool waits_for_guess() const;
  bool holds_for_drafts();
  bool holds_for_end() const;
  bool propose_drafts();
  bool take_every_draft();
  int64_t most_drafts(const Sequence& sequence) const;
  uint64_t rows_to_verify(const Sequence& sequence, size_t most) const;
  void take_rows(Sequence& sequence, uint64_t rows) const;
  const step::DraftTree& guess_tree(const Sequence& sequence) const;
  bool takes_tree(const Sequence& sequence, int32_t depth) const;
  void ask_proposer(const Sequence& sequence, int64_t most, Draft* draft);
  void take_proposed(Sequence& sequence, int64_t most);
  bool choose_drafts();
  StepShape collect_offers(size_t num_cohorts);
  void guess_anew(Sequence& sequence);
  void offer_own(Sequence& sequence, int64_t most);
  int32_t choose_guess();
  void add_guess(StepBuilder& builder, Sequence& sequence, step::SeqWork& work);
  int32_t grow_for_guess(const StepBuilder& builder, Sequence& sequence, int32_t behind,
                         int32_t most);
  void note_guess(Sequence& sequence, const step::SeqWork& work, const step::SeqResult& result);
  void add_constrained(const Sequence& sequence);
  bool take_chosen_drafts();
  void note_drafts(Sequence& sequence, StepRecord& record, int32_t num_draft,
                   const step::SeqResult& result, int32_t accepted);

  // plan.cpp
  int32_t choose_repeat() const;
  void plan_decodes(StepBuilder& builder);
  Cohorts divide_decodes() const;
  bool is_beside(const Sequence& sequence, int64_t num_cohorts) const;
  bool can_decode(const Sequence& sequence, int64_t num_cohorts) const;
  static int32_t drafts_that_fit(const Sequence& sequence);
  void decode_drafted(StepBuilder& builder, Sequence& sequence);
  void open_slot(StepBuilder& builder, Sequence& sequence);
  void add_work(StepBuilder& builder, Sequence& sequence, int32_t q_len, int32_t old_len);
  static void add_scores(Sequence& sequence, step::SeqWork& work);
  int32_t grow(StepBuilder& builder, Sequence& sequence, int32_t q_len);
  bool make_room(StepBuilder& builder, const Sequence& wants);
  Sequence* pick_victim(const Sequence& wants) const;
  int32_t blocks_held_alone(const Sequence& sequence) const;
  void promote_starved();

  // plan_prompts.cpp
  void plan_prompts(StepBuilder& builder);
  void list_demands(StepBuilder& builder);
  bool waits_for_company(const StepShape& shape, int64_t room) const;
  StepShape expected_decodes(const StepBuilder& builder) const;
  bool may_admit(const StepBuilder& builder) const;
  Admission admit(StepBuilder& builder, Sequence& sequence);
  int32_t max_match(const Sequence& sequence) const;
  kv::Match find_cached(Sequence& sequence);
  int32_t room_for(const StepBuilder& builder, const Sequence& sequence, int32_t from) const;
  int32_t max_chunk(const StepBuilder& builder, const Sequence& sequence, int32_t from) const;
  int32_t least_chunk(const StepBuilder& builder, const Sequence& sequence, int32_t chunk) const;
  int32_t cut_evenly(const StepShape& shape, int32_t chunk, int32_t least) const;
  bool has_capture_room(StepBuilder& builder, const Sequence& sequence, int32_t from) const;
  int32_t headroom() const;
  bool is_being_computed(Sequence& sequence, int32_t num_matched) const;

  // plan_tenant.cpp
  int32_t half_for(const StepBuilder& builder, int32_t from) const;
  void plan_tenant(StepBuilder& builder, int32_t tenant);
  Sequence* list_prompts(const StepBuilder& builder, int32_t tenant);
  bool has_room_for(const StepBuilder& builder, const WaitingLines::Line& line) const;
  Admission admit_first(StepBuilder& builder, int32_t tenant, const Sequence* begun);
  void share_step(StepBuilder& builder, Sequence& first);
  void take_turns(StepBuilder& builder, Sequence& first);
  void plan_soonest(StepBuilder& builder, bool admits);
  void plan_chunk(StepBuilder& builder, Sequence& sequence);

  // scheduler.cpp
  bool learns_cost() const;
  void reserve(Sequence& sequence) const;
  int32_t num_waiting() const { return static_cast<int32_t>(waiting_.size()); }
  int32_t num_groups() const { return capacity_.kv_groups.size(); }
  int32_t blocks_for(int64_t tokens) const;  // of one group
  int64_t blocks_to_take(int64_t tokens, const kv::BlockTables& tables) const;
  void commit_sequence(StepRecord& record, size_t index, const step::SeqResult& result,
                       std::vector<SequenceOutput>* out);
  void preempt(Sequence& sequence);
  void retire(Sequence& sequence);
  void end_drafting(Sequence& sequence);
  void release_if_idle(Sequence& sequence);  // kv.I3, step.I4
  void release(Sequence& sequence);
  void enqueue(Sequence& sequence);
  void dequeue(Sequence& sequence);

  // integrity.cpp
  Result<void> check_queues() const;
  Result<void> check_slots() const;
  Result<void> check_sequence(const Sequence& sequence) const;
  Result<void> check_tables(const Sequence& sequence) const;

  const step::Capacity capacity_;
  DraftProposer* const proposer_;  // null: no drafts
  const SchedSettings settings_;
  int32_t max_len_limit_ = 0;
  kv::BlockCache cache_;

  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  WaitingLines waiting_;
  std::vector<Sequence*> running_;  // hold a slot, by rank; retiring and preempting ones too
  int32_t num_running_ = 0;         // of running_, in state kRunning
  int64_t waiting_tokens_ = 0;
  uint64_t next_arrival_ = 1;

  StepCost cost_;  // learnt only where the time between tokens is bounded, or drafts are paced
  Trials trials_;
  Pace pace_;
  AnswerLength answers_;
  FairShares fair_shares_;

  DraftPacer pacer_;
  bool is_drafting_ = false;                 // the last decodes planned had drafts
  bool is_holding_ = false;                  // the last plan() gave none, for the sake of drafts
  bool drafts_pay_ = false;                  // as the last look at all sequences found
  size_t num_looks_ = 0;                     // at sequences, for what drafts they would have
  std::vector<DraftPacer::Offer> offers_;    // of the last look
  std::vector<Sequence*> offered_;           // whose they are
  int32_t num_guess_ = 0;                    // for each sequence of the next step, by the executor
  std::vector<const DraftRecord*> records_;  // scratch of choose_guess()

  std::vector<int32_t> free_slots_;
  std::vector<uint32_t> slot_generations_;

  std::vector<StepRecord> in_flight_;  // oldest first; a handful
  SpareRecords spare_;
  StepRecord last_;  // committed last; its outputs refer to its plan
  step::StepId last_step_ = 0;
  std::vector<SequenceId> first_planned_;
  std::vector<ConstrainedSequence> constrained_;
  std::vector<CapturedSequence> captured_sequences_;
  SchedStats counters_;                      // its gauges are unused
  kv::BlockTables matched_;                  // scratch of find_cached()
  std::vector<Sequence*> starved_;           // scratch of promote_starved()
  std::vector<FairShares::Demand> demands_;  // scratch of plan_prompts()
  std::vector<Sequence*> prompts_;           // scratch of plan_tenant()
};

}  // namespace rudder::sched
