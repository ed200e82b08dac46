// Running: the sequences that hold a slot: which of them decode in the next step, which finish, and
// which are preempted when blocks are missing. It owns their list and the slots, and gives blocks
// and slots back (kv.I3, step.I4). Prompts begins sequences here; one that is preempted goes to the
// WaitingLines. Scheduler owns it; Prompts, Drafts and StepBuilder read its list. Internal to the
// room; engine thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/sched/blocks.h"
#include "rudder/sched/copies.h"
#include "rudder/sched/settings.h"
#include "rudder/sched/slots.h"
#include "rudder/sched/state.h"
#include "rudder/sched/step_builder.h"
#include "rudder/sched/waiting_lines.h"
#include "rudder/step/executor.h"
#include "rudder/step/plan.h"
#include "rudder/step/result.h"

namespace rudder::sched {

class Running {
 public:
  // All of them outlive this.
  Running(const step::Capacity& capacity, const SchedSettings& settings, Blocks& blocks,
          WaitingLines& waiting, Copies& copies);

  // Those that hold a slot, by rank; retiring and preempting ones too.
  std::span<Sequence* const> all() const { return sequences_; }
  int32_t size() const { return static_cast<int32_t>(sequences_.size()); }
  int32_t num_running() const { return num_running_; }  // of all, not ending
  uint64_t preemptions() const { return preemptions_; }
  // Sequences that may run besides, and those of them that find a slot now.
  int32_t num_more() const { return settings_.max_num_seqs - num_running_; }
  int32_t num_seats() const { return std::min(num_more(), slots_.num_free()); }
  std::vector<uint32_t>& slot_generations() { return slots_.generations(); }

  // The sequence, whose tables hold `num_cached` tokens, gets a slot, which the plan opens. Where
  // the plan copies its state, and a copy may take longer, it waits for that: it is in no plan yet.
  void begin(Sequence& sequence, int32_t num_cached, step::StepPlan& plan);

  // Iterations of the next step.
  int32_t choose_repeat() const;
  void plan_decodes(StepBuilder& builder);
  // Gives the sequence blocks for its next `q_len` tokens, or for as many of them as there are
  // blocks; makes room only when it could not go on at all. Returns how many tokens it has room
  // for.
  int32_t grow(StepBuilder& builder, Sequence& sequence, int32_t q_len);

  // The iteration that record.committed counts last gave the sequence with this index `accepted`
  // drafts: so far it has come. Then, once its tokens are known, shares the blocks it has filled
  // and the checkpoints that the step has made.
  void note_result(const StepRecord& record, size_t index, const step::SeqResult& result,
                   int32_t accepted);
  void publish(const StepRecord& record, size_t index, const step::SeqResult& result,
               int32_t accepted);

  // It has ended, or was finished: it is in no further plan.
  void retire(Sequence& sequence);
  void preempt_all();
  // The records that were copied to it are there: it runs from now on, and others share them; or
  // some failed, then it gives everything back and waits again.
  void end_load(Sequence& sequence);
  // Gives slot and blocks back once no step in flight names it. True: it is to be forgotten.
  bool release_if_idle(Sequence& sequence);
  // The executor is dead: gives everything back, whatever is in flight.
  void drop_all();

  // That slots, order and counts are right.
  Result<void> check() const;

 private:
  struct Cohorts {
    int64_t count = 1;
    int64_t size = 0;  // sequences that a step decodes at most
  };

  bool publish_blocks(const StepRecord& record, size_t index, const step::SeqResult& result,
                      int32_t accepted);
  void open_slot(const Sequence& sequence, step::StepPlan& plan) const;
  int64_t blocks_to_repeat(int32_t repeat) const;
  Cohorts divide_decodes() const;
  bool is_beside(const Sequence& sequence, int64_t num_cohorts, step::StepId step) const;
  bool can_decode(const Sequence& sequence, int64_t num_cohorts, step::StepId step) const;
  void decode_drafted(StepBuilder& builder, Sequence& sequence);
  bool make_room(StepBuilder& builder, const Sequence& wants);
  Sequence* pick_victim(const Sequence& wants) const;
  void preempt(Sequence& sequence);
  void release(Sequence& sequence);

  const step::Capacity& capacity_;
  const SchedSettings& settings_;
  Blocks& blocks_;
  WaitingLines& waiting_;
  Copies& copies_;
  Slots slots_;
  std::vector<Sequence*> sequences_;
  int32_t num_running_ = 0;
  uint64_t preemptions_ = 0;
};

}  // namespace rudder::sched
