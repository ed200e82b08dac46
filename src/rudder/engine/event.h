// Event: what the engine sends for a request. Plain values, sent on the engine thread to the sink
// that came with the request. Exactly one event of each choice has `finish` set; after the last of
// them nothing more is sent.
#pragma once

#include <boost/container/small_vector.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/engine/request.h"
#include "rudder/steer/capture/result.h"

namespace rudder::engine {

enum class FinishReason : uint8_t { kStop, kLength, kCancelled, kError };

struct TopLogprob {
  int32_t token = 0;
  float logprob = 0;
};

struct OutputToken {
  int32_t token = 0;
  bool has_logprobs = false;
  float logprob = 0;
  int32_t rank = 0;
  std::vector<TopLogprob> top;
};

// Most events have one token: it needs no memory of its own.
using OutputTokens = boost::container::small_vector<OutputToken, 1>;

struct Usage {
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;       // of the prompt, found in the prefix cache (choice 0)
  int32_t cached_host_tokens = 0;  // of these, in host memory
  int32_t cached_disk_tokens = 0;  // and in files
  int32_t completion_tokens = 0;   // of this choice
  int32_t reasoning_tokens = 0;    // of those; counted by who parses the text, not by the engine
  // Of this choice: guesses of speculation that steps verified, and that were right or wrong.
  int32_t accepted_prediction_tokens = 0;
  int32_t rejected_prediction_tokens = 0;
};

struct Event {
  RequestId id;
  int32_t choice = 0;
  std::string text;     // new text that can no longer change; may be empty
  OutputTokens tokens;  // sampled since the last event
  // Of the prompt, how likely they were, where the request asks: choice 0 gets each but the first,
  // in order, before its first sampled token or with it.
  std::vector<OutputToken> prompt_logprobs;
  std::optional<FinishReason> finish;
  std::string stop_reason;            // the stop string that matched, when one did
  std::optional<int32_t> stop_token;  // the stop id that ended it, when not end-of-sequence
  std::optional<Error> error;         // with kError: numerical_error, overloaded, ...
  Usage usage;                        // so far
  // What consumers of captured rows say while the request runs, when it asked for that.
  std::vector<steer::capture::CaptureEvent> captures;
  // With `finish`, when the request captures: what became of it. Absent after a cancel.
  std::optional<steer::capture::CaptureResults> capture_results;
};

// Called on the engine thread; must not block. Takes the event over.
using EventSink = std::function<void(Event&&)>;

}  // namespace rudder::engine
