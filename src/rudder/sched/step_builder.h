// StepBuilder: the step being planned: its plan so far, and what is left to give to further
// sequences. Scheduler::plan makes one; Running and Prompts choose sequences and add their parts,
// which are written here and nowhere else. Internal to the room; engine thread.
#pragma once

#include <cstdint>
#include <vector>

#include "rudder/sched/drafts.h"
#include "rudder/sched/sequence.h"
#include "rudder/sched/spare_records.h"
#include "rudder/sched/step_cost.h"
#include "rudder/sched/step_record.h"

namespace rudder::sched {

struct StepBuilder {
  StepRecord& record;
  SpareRecords& spare;
  Drafts& drafts;
  Blocks& blocks;
  std::vector<ConstrainedSequence>& constrained;  // of the plan, in its order

  int32_t tokens_left = 0;
  int64_t guess_left = 0;       // known tokens that the executor's proposer may run
  int64_t elements_left = 0;    // of the capture buffer
  StepShape shape = {};         // of its sequences so far
  bool is_closed = false;       // nothing more is admitted
  bool is_full = false;         // nothing but small prompts: a large one has waited for long
  int64_t blocks_promised = 0;  // that running prompts will still take
  int32_t blocks_short = 0;     // that sequences of this step did not find
  int32_t blocks_coming = 0;    // that sequences about to go will give back

  step::StepPlan& plan() const { return *record.plan; }
  // The next `q_len` tokens of the sequence, which has blocks for them. Its tables had `old_len`
  // blocks before they grew for this step.
  void add(Sequence& sequence, int32_t q_len, int32_t old_len);

 private:
  void write_tokens(const Sequence& sequence, step::SeqWork& work) const;
  static void write_scores(Sequence& sequence, step::SeqWork& work);
  void write_blocks(const Sequence& sequence, int32_t old_len, step::SeqWork& work) const;
  void advance(Sequence& sequence, step::SeqWork& work);
  void plan_checkpoint(Sequence& sequence, const step::SeqWork& work);
};

}  // namespace rudder::sched
