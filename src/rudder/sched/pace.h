// Pace: how many prompt tokens a step may have beside sequences that stream, which wait for all of
// it. The bound on the time of such a step is given (SchedSettings::max_itl_us), or follows from
// what steps were seen to take: a multiple of the typical wait between two tokens. Normative text:
// docs/contracts/step.md, "How many prompt tokens a step may have". Internal to the room; engine
// thread.
#pragma once

#include <cstdint>

#include "rudder/sched/step_cost.h"

namespace rudder::sched {

class Pace {
 public:
  // As SchedSettings::max_itl_us. `cost` is learnt by its owner, and outlives this.
  Pace(int64_t max_itl_us, const StepCost& cost) : max_itl_us_(max_itl_us), cost_(cost) {}

  // An iteration of this shape took so long. A time of 0 is unknown, and nothing is learnt of it.
  void observe(const StepShape& shape, int64_t us);

  // The most prompt tokens, at most `most`, that a step which has `shape` so far can take of a
  // sequence with `kv_len` in KV. `most` where no sequence of the step streams.
  int32_t tokens_within(const StepShape& shape, int32_t kv_len, int32_t most) const;

 private:
  double limit_us(const StepShape& shape) const;
  void note_wait(double us, double num_waiting);

  const int64_t max_itl_us_;
  const StepCost& cost_;
  // The wait that kTypicalShare of the tokens do not pass, and the usual number of sequences that
  // wait; both follow slowly.
  double typical_us_ = 0;
  double typical_waiting_ = 0;
  int64_t num_waits_ = 0;
  int64_t num_skipped_ = 0;  // before the first that counts
};

}  // namespace rudder::sched
