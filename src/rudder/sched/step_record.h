// A step in flight: its plan, whose it is, and what its result will be held against. StepBuilder
// fills it, Scheduler keeps it until the step's last iteration is committed. Internal to the room;
// engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "rudder/sched/state.h"
#include "rudder/sched/step_cost.h"
#include "rudder/step/plan.h"

namespace rudder::sched {

// A copy of a sequence's state that a step makes behind its last write, for others to go on from.
struct Checkpoint {
  size_t seq = 0;  // index into StepRecord.sequences
  cache::StateId state = cache::kNoState;
  int32_t num_blocks = 0;  // of the sequence, which it stands behind
};

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
  std::vector<Checkpoint> checkpoints = {};
  bool waited = false;  // for tokens to be known, when it could have been planned before
};

}  // namespace rudder::sched
