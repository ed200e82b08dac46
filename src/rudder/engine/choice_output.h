// ChoiceOutput: turns the sampled tokens of one choice into the text of its events: streaming
// detokenizer, then stop strings across token borders, behind the thoughts; also detects
// repetitions of its tokens. The choice owns it; the engine thread calls it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "rudder/engine/event.h"
#include "rudder/engine/repetition.h"
#include "rudder/engine/request.h"
#include "rudder/engine/thought_gate.h"
#include "rudder/text/stop_strings.h"
#include "rudder/text/stream_decoder.h"
#include "rudder/text/tokenizer.h"

namespace rudder::engine {

class ChoiceOutput {
 public:
  // `stops` is compiled from params.stop, null when there is none.
  ChoiceOutput(const std::shared_ptr<const text::Tokenizer>& tokenizer,
               std::shared_ptr<const text::StopSet> stops, const RequestParams& params);

  // Counts the token and appends to event.text what it made certain. The text of a stop id is left
  // out unless the request includes its stops. True when a stop string is complete, or the tokens
  // repeat themselves more than they may: the text then ends where it should, event.stop_reason is
  // set, and nothing may follow.
  bool push(int32_t token, bool is_stop_id, Event& event);

  // The choice ends without a stop string so far: appends what was held back. True when that
  // completed one after all.
  bool finish(Event& event);

  int32_t num_tokens() const { return num_tokens_; }

 private:
  bool match(std::string_view delta, Event& event);
  // What of the text stop strings are looked for in; the thoughts before it go to the event.
  // Valid until the next call.
  std::string_view behind_thoughts(std::string_view delta, Event& event);

  text::StreamDecoder decoder_;
  ThoughtGate gate_;
  std::string behind_;  // the thoughts
  text::StopMatcher matcher_;
  RepetitionDetector repetition_;
  std::shared_ptr<const text::StopSet> stops_;
  std::string echo_;  // the prompt's text, until the first event takes it
  const int32_t min_tokens_;
  const bool include_stop_;
  int32_t num_tokens_ = 0;
};

}  // namespace rudder::engine
