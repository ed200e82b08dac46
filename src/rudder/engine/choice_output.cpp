#include "rudder/engine/choice_output.h"

#include <algorithm>
#include <span>
#include <utility>

#include "rudder/base/mutants.h"

namespace rudder::engine {
namespace {

// Enough of the prompt's end for the decoder to know that the output is not the start of a text.
constexpr size_t kContextTokens = 8;

}  // namespace

ChoiceOutput::ChoiceOutput(const std::shared_ptr<const text::Tokenizer>& tokenizer,
                           std::shared_ptr<const text::StopSet> stops, const RequestParams& params)
    : decoder_(tokenizer, params.skip_special_tokens, params.shown_special_ids),
      gate_(stops == nullptr ? std::nullopt : params.thoughts),
      matcher_(stops, params.include_stop),
      repetition_(params.repetition),
      stops_(std::move(stops)),
      min_tokens_(params.sampling.min_tokens),
      include_stop_(params.include_stop) {
  const std::span<const int32_t> prompt(params.prompt);
  decoder_.prime(prompt.last(std::min(prompt.size(), kContextTokens)));
  if (params.echo_prompt_text) echo_ = tokenizer->decode(prompt, params.skip_special_tokens);
}

bool ChoiceOutput::push(int32_t token, bool is_stop_id, Event& event) {
  num_tokens_ += 1;
  const bool repeats = repetition_.push(token);
  event.text += std::exchange(echo_, {});
  if (is_stop_id && !include_stop_) return false;
  const std::string_view delta = behind_thoughts(decoder_.push(token), event);
  // Stop strings and repetitions count from the text behind min_tokens on.
  if (num_tokens_ <= min_tokens_ && !RUDDER_MUTANT(kStopBeforeMinTokens)) {
    event.text += delta;
    return false;
  }
  if (match(delta, event)) return true;
  if (repeats) event.stop_reason = "repetition_detected";
  return repeats;
}

bool ChoiceOutput::finish(Event& event) {
  event.text += std::exchange(echo_, {});
  const std::string_view delta = behind_thoughts(decoder_.flush(), event);
  if (match(delta, event) || match(gate_.flush(), event)) return true;
  if (!RUDDER_MUTANT(kHeldTextDropped)) event.text += matcher_.flush();
  return false;
}

std::string_view ChoiceOutput::behind_thoughts(std::string_view delta, Event& event) {
  if (!gate_.is_shut()) return delta;
  ThoughtGate::Parts parts = gate_.push(delta);
  event.text += parts.thoughts;
  behind_ = std::move(parts.rest);
  return behind_;
}

bool ChoiceOutput::match(std::string_view delta, Event& event) {
  event.text += matcher_.push(delta);
  if (!matcher_.match()) return false;
  event.stop_reason = stops_->strings()[matcher_.match()->index];
  return true;
}

}  // namespace rudder::engine
