// Pace: how many prompt tokens a step may have beside sequences that stream, which wait for all of
// it. The bound on the time of such a step is given (SchedSettings::max_itl_us), or follows from
// what steps were seen to take: a multiple of the typical wait between two tokens. Normative text:
// docs/contracts/step.md, "How many prompt tokens a step may have". Internal to the room; engine
// thread.
#pragma once

#include <cstdint>

#include "rudder/sched/step_cost.h"
#include "rudder/sched/typical_wait.h"

namespace rudder::sched {

class Pace {
 public:
  // As SchedSettings::max_itl_us. `cost` is learnt by its owner, and outlives this.
  Pace(int64_t max_itl_us, const StepCost& cost);

  // An iteration of this shape took so long. A time of 0 is unknown, and nothing is learnt of it.
  void observe(const StepShape& shape, int64_t us);

  // The decodes of a step once those that wait have been admitted, as far as there is room.
  void expect(const StepShape& decodes) { expected_ = decodes; }

  // The most prompt tokens, at most `most`, that a step which has `shape` so far can take of a
  // sequence with `kv_len` in KV. `most` where no sequence of the step streams.
  int32_t tokens_within(const StepShape& shape, int32_t kv_len, int32_t most) const;

  // Whether prompts of `waiting` tokens, of which no step has run any, are left for a later step
  // than that of `shape`, whose bound has room for `room`: until they fill one, or prompts have had
  // no more than their share of the last steps.
  bool leaves_waiting(const StepShape& shape, int64_t waiting, int64_t room) const;

  // A step of this shape was planned.
  void note_plan(const StepShape& shape);

 private:
  double limit_us(const StepShape& shape) const;

  const int64_t max_itl_us_;
  const StepCost& cost_;
  TypicalWait waits_;
  StepShape expected_ = {};
  // In the mean of about the last five hundred steps beside streams: their tokens, and the keys of
  // each.
  double usual_tokens_ = 0;
  double usual_keys_ = 0;
  int64_t num_usual_ = 0;  // steps that were seen, at most kUsualSteps
  double steps_to_spare_;  // that may have prompts which do not fill them
};

}  // namespace rudder::sched
