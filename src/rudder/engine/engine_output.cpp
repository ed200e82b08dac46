// The other half of EngineCore: what a committed step gave becomes events and metrics.
#include <algorithm>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/base/mutants.h"
#include "rudder/engine/engine_core.h"

namespace rudder::engine {
namespace {

double seconds(int64_t us) {
  return static_cast<double>(us) * 1e-6;
}

OutputToken output_token(int32_t token, const step::TokenLogprobs* logprobs) {
  OutputToken out;
  out.token = token;
  if (logprobs == nullptr) return out;
  out.has_logprobs = true;
  out.logprob = logprobs->logprob;
  out.rank = logprobs->rank;
  out.top.reserve(logprobs->top.size());
  for (const auto& [id, logprob] : logprobs->top) out.top.push_back({id, logprob});
  return out;
}

}  // namespace

void EngineCore::deliver(const sched::SequenceOutput& output, int64_t now_us) {
  const auto target = targets_.find(output.id);
  RUDDER_CHECK(target != targets_.end(), "output for sequence {}, which has ended",
               output.id.value);
  Open& request = *target->second.request;
  const int32_t index = target->second.choice;
  Choice& choice = request.choices[static_cast<size_t>(index)];
  choice.cached_tokens = output.cached_tokens;

  Event event;
  event.id = request.id;
  event.choice = index;
  event.prompt_logprobs.reserve(output.scored.size());
  for (size_t i = 0; i < output.scored.size(); ++i) {
    event.prompt_logprobs.push_back(output_token(output.scored[i], &output.scores[i]));
  }
  const bool stopped = push_tokens(output, choice, event) && !RUDDER_MUTANT(kStopStringRace);
  note_tokens(request, choice, event.tokens.size(), now_us);
  if (stopped) {
    if (output.end == step::RowEnd::kNone) scheduler_.finish(output.id);
    finish_choice(request, index, std::move(event), FinishReason::kStop, now_us);
  } else if (output.end == step::RowEnd::kStopId) {
    const int32_t token = output.tokens.back();
    if (!is_eos(request, token)) event.stop_token = token;
    finish_choice(request, index, std::move(event), FinishReason::kStop, now_us);
  } else if (output.end == step::RowEnd::kLength) {
    finish_choice(request, index, std::move(event), FinishReason::kLength, now_us);
  } else if (output.end == step::RowEnd::kNumerical) {
    if (RUDDER_MUTANT(kNumericalHidden)) {
      finish_choice(request, index, std::move(event), FinishReason::kStop, now_us);
      return forget_if_finished(request);
    }
    event.error = Error{ErrorCode::kNumerical, "the model gave NaN or Inf for this request", ""};
    finish_choice(request, index, std::move(event), FinishReason::kError, now_us);
  } else {
    event.usage = usage(request, choice);
    request.sink(std::move(event));
    return;
  }
  forget_if_finished(request);
}

// Asked to ignore it, an end-of-sequence id can only be one of the request's own stop ids.
bool EngineCore::is_eos(const Open& request, int32_t token) const {
  const auto& eos = limits_.eos_ids;
  return !request.ignore_eos && std::find(eos.begin(), eos.end(), token) != eos.end();
}

// True when a stop string is complete; the tokens behind it are dropped.
bool EngineCore::push_tokens(const sched::SequenceOutput& output, Choice& choice, Event& event) {
  event.tokens.reserve(output.tokens.size());
  for (size_t i = 0; i < output.tokens.size(); ++i) {
    const bool is_last = i + 1 == output.tokens.size();
    const bool is_stop_id = is_last && output.end == step::RowEnd::kStopId;
    const step::TokenLogprobs* logprobs =
        i < output.logprobs.size() ? &output.logprobs[i] : nullptr;
    event.tokens.push_back(output_token(output.tokens[i], logprobs));
    if (choice.output.push(output.tokens[i], is_stop_id, event)) return true;
  }
  return false;
}

void EngineCore::finish_choice(Open& request, int32_t index, Event event, FinishReason reason,
                               int64_t now_us) {
  Choice& choice = request.choices[static_cast<size_t>(index)];
  RUDDER_CHECK(choice.open);
  const bool ran_out = reason == FinishReason::kStop || reason == FinishReason::kLength;
  if (ran_out && choice.output.finish(event)) {
    reason = FinishReason::kStop;
    event.stop_token.reset();
  }
  const sched::SequenceId sequence = request.sequences[static_cast<size_t>(index)];
  targets_.erase(sequence);
  constraints_.erase(sequence);
  event.id = request.id;
  event.choice = index;
  event.finish = reason;
  event.usage = usage(request, choice);
  note_finish(request, choice, reason, now_us);
  end_sequence(request, choice);
  if (choice.capture.value == 0 || RUDDER_MUTANT(kLastEventUnheld)) {
    send_last_event(request, choice, std::move(event));
  } else if (reason == FinishReason::kCancelled || dead_) {
    captures_->cancel(choice.capture);
    send_last_event(request, choice, std::move(event));
  } else {
    captures_->end(choice.capture);
    if (request.tells_captures) return hold_last_event(request, choice, std::move(event));
    send_last_event(request, choice, std::move(event));
  }
}

void EngineCore::send_last_event(Open& request, Choice& choice, Event event) {
  choice.open = false;
  request.num_open -= 1;
  if (RUDDER_MUTANT(kDoubleFinish)) request.sink(Event(event));
  request.sink(std::move(event));
}

void EngineCore::end_request(RequestId id, FinishReason reason, const std::optional<Error>& error) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;  // it has finished
  Open& request = *found->second;
  const int64_t now_us = clock_->now_us();
  for (size_t i = 0; i < request.choices.size(); ++i) {
    Choice& choice = request.choices[i];
    if (!choice.open) continue;
    if (RUDDER_MUTANT(kPartialCancel) && i > 0) break;
    if (choice.last_event) {  // nobody waits for what became of its captures
      send_last_event(request, choice, std::move(*choice.last_event));
      continue;
    }
    if (!RUDDER_MUTANT(kCancelKeepsSequence)) scheduler_.finish(request.sequences[i]);
    Event event;
    event.error = error;
    finish_choice(request, static_cast<int32_t>(i), std::move(event), reason, now_us);
  }
  forget_if_finished(request);
}

void EngineCore::end_every_request(FinishReason reason, const std::optional<Error>& error) {
  std::vector<RequestId> ids;
  for (const auto& [id, request] : requests_) ids.push_back(id);
  std::ranges::sort(ids, {}, &RequestId::value);
  for (const RequestId id : ids) end_request(id, reason, error);
}

void EngineCore::forget_if_finished(const Open& request) {
  if (request.num_open > 0) return;
  requests_.erase(request.id);
  num_open_.fetch_sub(1, std::memory_order_acq_rel);
}

Usage EngineCore::usage(const Open& request, const Choice& choice) const {
  return {.prompt_tokens = request.prompt_tokens,
          .cached_tokens = choice.cached_tokens,
          .completion_tokens = choice.output.num_tokens()};
}

void EngineCore::note_first_planned(int64_t now_us) {
  for (const sched::SequenceId id : scheduler_.first_planned()) {
    const auto target = targets_.find(id);
    if (target == targets_.end()) continue;
    Open& request = *target->second.request;
    if (request.first_planned_us) continue;
    request.first_planned_us = now_us;
    request.place.release();
    live_.queue_time.observe(seconds(now_us - request.arrival_us));
  }
}

void EngineCore::note_tokens(const Open& request, Choice& choice, size_t count, int64_t now_us) {
  if (count == 0) return;
  live_.generation_tokens += count;
  size_t gaps = count;
  if (!choice.first_token_us) {
    choice.first_token_us = now_us;
    choice.last_token_us = now_us;
    gaps -= 1;
    live_.prompt_tokens += static_cast<uint64_t>(request.prompt_tokens);
    live_.prompt_tokens_cached += static_cast<uint64_t>(choice.cached_tokens);
    live_.time_to_first_token.observe(seconds(now_us - request.arrival_us));
    live_.prefill_time.observe(seconds(now_us - request.first_planned_us.value_or(now_us)));
  }
  if (gaps == 0) return;
  const double gap = seconds(now_us - choice.last_token_us) / static_cast<double>(gaps);
  live_.inter_token_latency.observe(gap, gaps);
  choice.last_token_us = now_us;
}

void EngineCore::note_finish(const Open& request, const Choice& choice, FinishReason reason,
                             int64_t now_us) {
  switch (reason) {
    case FinishReason::kStop:
      live_.finished_stop += 1;
      break;
    case FinishReason::kLength:
      live_.finished_length += 1;
      break;
    case FinishReason::kCancelled:
      live_.finished_cancelled += 1;
      break;
    case FinishReason::kError:
      live_.finished_error += 1;
      break;
  }
  live_.e2e_latency.observe(seconds(now_us - request.arrival_us));
  live_.request_generation_tokens.observe(choice.output.num_tokens());
  if (choice.first_token_us) {
    live_.decode_time.observe(seconds(choice.last_token_us - *choice.first_token_us));
  }
}

}  // namespace rudder::engine
