// What goes into the scheduler and what comes out of it: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rudder/base/ids.h"
#include "rudder/step/result.h"
#include "rudder/step/sampling.h"

namespace rudder::sched {

using SequenceId = StrongId<struct SequenceTag, uint64_t>;  // made by the engine, never reused

// One choice of one request. Arrival order is the order of Scheduler::add.
struct NewSequence {
  SequenceId id;
  std::vector<int32_t> prompt;  // at least one token
  step::SamplingParams sampling;
  int32_t max_len = 0;     // prompt and output together, > prompt.size()
  int32_t priority = 0;    // lower runs first
  std::string cache_salt;  // sequences of different salts share no KV block
};

// What one committed step gave one sequence. A step that gave it neither token nor end has no
// output for it.
struct SequenceOutput {
  SequenceId id;
  std::vector<int32_t> tokens;  // sampled in this step, in order
  std::vector<step::TokenLogprobs> logprobs;
  step::RowEnd end = step::RowEnd::kNone;  // else this is the sequence's last output
  int32_t cached_tokens = 0;               // of the prompt, found in the prefix cache
};

}  // namespace rudder::sched
