// DraftProposer: guesses the tokens that follow a sequence's last one, for one step to verify. What
// is generated does not depend on it (step.I11), only how many steps that takes. The scheduler
// calls it on the engine thread, so it must be quick. Whoever makes the scheduler owns it; it
// outlives the scheduler.
#pragma once

#include <cstdint>
#include <span>

#include "rudder/sched/draft.h"
#include "rudder/sched/sequence.h"

namespace rudder::sched {

class DraftProposer {
 public:
  virtual ~DraftProposer() = default;

  // A sequence that may be drafted for was added to the scheduler. Ids of all other calls are of
  // such sequences, from begin() up to end().
  virtual void begin(const NewSequence& sequence) = 0;
  // It has ended, or was cancelled; `tokens` are its prompt and its output.
  virtual void end(SequenceId id, std::span<const int32_t> tokens) = 0;

  // Asked where every draft is verified. True: the scheduler plans no step while a token of the
  // sequence is in flight, so that it can ask for a draft behind each token. False for all: they
  // run ahead, and a sequence has a draft only where all its tokens happen to be known.
  virtual bool waits(SequenceId id) = 0;

  // Fills `draft`, which is empty: a guess at what follows `tokens`, the sequence's prompt and its
  // whole output so far. None: the step decodes plainly.
  virtual void propose(SequenceId id, std::span<const int32_t> tokens, const DraftAsk& ask,
                       Draft* draft) = 0;
};

}  // namespace rudder::sched
