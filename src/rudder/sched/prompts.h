// Prompts: which prompts the next step runs, and how many tokens of each (chunked prefill): chunks
// of sequences that have begun, then admissions of those that wait. Scheduler owns it and calls
// plan() once a step, behind the decodes. Tenants share a step fairly, and so do the prompts of one
// tenant; the bound on the time of a step (PromptBound) says how much there is to share. Normative
// text: docs/contracts/step.md, "How many prompt tokens a step may have" and "Whose prompts run".
// Internal to the room; engine thread.
#pragma once

#include <cstdint>
#include <vector>

#include "rudder/sched/answer_length.h"
#include "rudder/sched/blocks.h"
#include "rudder/sched/fair_shares.h"
#include "rudder/sched/overtaking.h"
#include "rudder/sched/prompt_bound.h"
#include "rudder/sched/running.h"
#include "rudder/sched/settings.h"
#include "rudder/sched/state.h"
#include "rudder/sched/stats.h"
#include "rudder/sched/step_builder.h"
#include "rudder/sched/tiers.h"
#include "rudder/sched/waiting_lines.h"
#include "rudder/step/executor.h"

namespace rudder::sched {

class Prompts {
 public:
  // The stores and other parts of the scheduler that it uses.
  struct Parts {
    Blocks& blocks;
    WaitingLines& waiting;
    Running& running;
    Tiers& tiers;
    PromptBound& bound;
    const AnswerLength& answers;
  };
  // All of them outlive this.
  Prompts(const step::Capacity& capacity, const SchedSettings& settings, const Parts& parts);

  // Behind the decodes: adds prompts to the step, as far as it has room.
  void plan(StepBuilder& builder);

  // Sequences that were planned for the first time since the list was cleared.
  const std::vector<SequenceId>& first_planned() const { return first_planned_; }
  void clear_first_planned() { first_planned_.clear(); }
  void add_to(SchedStats* stats) const;

 private:
  enum class Admission : uint8_t { kAdmitted, kHeld, kNoRoom, kNoTime };

  // prompts.cpp: by tenant, in the order of their shares.
  void list_demands(StepBuilder& builder);
  void note_running(const Sequence& sequence, StepBuilder& builder);
  FairShares::Demand& demand_of(int32_t tenant);
  bool waits_for_company(const StepShape& shape, int64_t room) const;
  StepShape expected_decodes(const StepBuilder& builder) const;

  // prompts_chunks.cpp: how many tokens of a prompt, and who is admitted.
  int32_t tokens_left(const StepBuilder& builder) const;
  int32_t room_for(const StepBuilder& builder, const Sequence& sequence, int32_t from) const;
  int32_t half_for(const StepBuilder& builder, int32_t from) const;
  int32_t max_chunk(const StepBuilder& builder, const Sequence& sequence, int32_t from) const;
  int32_t least_chunk(const StepBuilder& builder, const Sequence& sequence, int32_t chunk) const;
  int32_t cut_evenly(const StepShape& shape, int32_t chunk, int32_t least) const;
  void plan_chunk(StepBuilder& builder, Sequence& sequence);
  bool may_admit(const StepBuilder& builder, bool goes_past = false) const;
  Admission admit(StepBuilder& builder, Sequence& sequence);
  void begin(StepBuilder& builder, Sequence& sequence, cache::Match match,
             const Tiers::Reach& reach);
  bool has_capture_room(StepBuilder& builder, const Sequence& sequence, int32_t from);
  bool is_being_computed(Sequence& sequence, int32_t num_matched) const;
  bool computes(Sequence& other, Sequence& sequence, int32_t i) const;
  int32_t end_of(int32_t block) const;

  // prompts_tenant.cpp: which of a tenant's prompts.
  void plan_tenant(StepBuilder& builder, int32_t tenant);
  Sequence* list_prompts(const StepBuilder& builder, int32_t tenant);
  bool has_blocks_for(const StepBuilder& builder, const WaitingLines::Line& line) const;
  Admission admit_first(StepBuilder& builder, int32_t tenant, const Sequence* begun);
  void share_step(StepBuilder& builder, Sequence& first);
  void take_turns(StepBuilder& builder, Sequence& first);
  void plan_soonest(StepBuilder& builder, bool admits);

  const step::Capacity& capacity_;
  const SchedSettings& settings_;
  Blocks& blocks_;
  WaitingLines& waiting_;
  Running& running_;
  Tiers& tiers_;
  PromptBound& bound_;
  const AnswerLength& answers_;

  FairShares fair_shares_;
  Overtaking overtaking_;
  std::vector<SequenceId> first_planned_;
  uint64_t prefix_queries_ = 0;
  uint64_t prefix_hits_ = 0;
  uint64_t prefix_unstated_ = 0;
  uint64_t overtakes_ = 0;

  struct Step {
    int32_t others = 0;  // tokens that the tenant which is served leaves to others
    // Of a tenant whose prompts share its part of the step: who came first, the tokens kept for it,
    // and the prompt tokens of the step before the others', these among them. Null: they do not
    // share.
    const Sequence* first = nullptr;
    int32_t kept = 0;
    int64_t prompts_before = 0;
    bool leaves_half = false;     // of what there is for the sequence that is admitted, for others
    int64_t elements_kept = 0;    // of the capture buffer, for each running sequence that captures
    bool elements_short = false;  // a sequence that captures waits for them
    int64_t running_tokens = 0;   // of sequences that run, all that the host knows
    Turnover turnover = {};       // of those of them that stream
    LongPrompt longest = {};      // of those of them that do not
  };
  Step step_;                                // that is being planned
  std::vector<FairShares::Demand> demands_;  // by tenant
  std::vector<Sequence*> prompts_;           // of the tenant that is served
  cache::BlockTables matched_;               // of the sequence that is admitted
};

}  // namespace rudder::sched
