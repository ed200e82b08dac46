// OpenRequest: what the engine keeps of a request from the moment it takes it out of the mailbox
// until the last event of its last choice. Owned by RequestTable; the engine thread's alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "rudder/engine/bounded_queue.h"
#include "rudder/engine/choice_output.h"
#include "rudder/engine/event.h"
#include "rudder/engine/request.h"
#include "rudder/engine/resolved_taps.h"
#include "rudder/sched/sequence.h"
#include "rudder/steer/capture/dispatcher.h"

namespace rudder::engine {

struct OpenChoice {
  explicit OpenChoice(ChoiceOutput made) : output(std::move(made)) {}

  ChoiceOutput output;
  bool open = true;                      // its last event has not been sent
  bool has_sequence = true;              // its sequence has not ended
  steer::capture::CaptureId capture;     // value 0: none
  std::optional<Event> last_event;       // held back until the capture's results are there
  steer::capture::StopCount stop_count;  // of `stop_when`, where the request has one
  bool lost_row = false;                 // a row that it reads is lost
  int32_t cached_tokens = 0;             // of the prompt, found in the prefix cache
  int32_t cached_host_tokens = 0;        // of these, in host memory
  int32_t cached_disk_tokens = 0;        // and in files
  int32_t accepted_tokens = 0;           // guessed by speculation and right
  int32_t rejected_tokens = 0;           // and wrong
  std::optional<int64_t> first_token_us;
  int64_t last_token_us = 0;
};

struct OpenRequest {
  RequestId id;
  EventSink sink;
  std::optional<Error> sink_error;  // what the sink threw: it gets last events alone from then on
  BoundedQueue::Place place;
  std::vector<sched::SequenceId> sequences;  // by choice
  std::vector<OpenChoice> choices;
  int32_t num_open = 0;       // choices that are open
  int32_t num_sequences = 0;  // sequences that have not ended
  int32_t prompt_tokens = 0;
  int32_t max_tokens = 0;  // of output; 0: what is sampled is none
  int32_t min_tokens = 0;  // before which no row ends a choice
  bool ignore_eos = false;
  bool tells_captures = false;  // the last event of a choice waits for the results of its captures
  int64_t arrival_us = 0;
  std::optional<int64_t> first_planned_us;  // absent: no step has been planned with it

  std::optional<Request> unscheduled;  // until the scheduler has its sequences
  ResolvedTaps taps;
  int32_t priority = 0;        // lower runs first
  uint64_t waiting_since = 0;  // steps launched before it came
  uint64_t seed = 0;
  std::optional<sched::TapLease> lease;  // while sequences with taps run
};

// Of the choice, as usage and metrics have them.
inline int32_t output_tokens(const OpenRequest& request, const OpenChoice& choice) {
  return std::min(request.max_tokens, choice.output.num_tokens());
}

}  // namespace rudder::engine
