#include "rudder/engine/delivery.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/base/contain.h"
#include "rudder/base/log.h"
#include "rudder/base/mutants.h"

namespace rudder::engine {
namespace {

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

// True when a stop string is complete; the tokens behind it are dropped.
bool push_tokens(const sched::SequenceOutput& output, OpenChoice& choice, Event& event) {
  event.tokens.reserve(output.tokens.size());
  for (size_t i = 0; i < output.tokens.size(); ++i) {
    const bool is_last = i + 1 == output.tokens.size();
    const bool is_stop_id = is_last && output.end == step::SeqEnd::kStopId;
    const step::TokenLogprobs* logprobs =
        i < output.logprobs.size() ? &output.logprobs[i] : nullptr;
    event.tokens.push_back(output_token(output.tokens[i], logprobs));
    if (choice.output.push(output.tokens[i], is_stop_id, event)) return true;
  }
  return false;
}

Usage usage(const OpenRequest& request, const OpenChoice& choice) {
  return {.prompt_tokens = request.prompt_tokens,
          .cached_tokens = choice.cached_tokens,
          .cached_host_tokens = choice.cached_host_tokens,
          .cached_disk_tokens = choice.cached_disk_tokens,
          .completion_tokens = output_tokens(request, choice),
          .accepted_prediction_tokens = choice.accepted_tokens,
          .rejected_prediction_tokens = choice.rejected_tokens};
}

}  // namespace

void Delivery::deliver(const sched::SequenceOutput& output, int64_t now_us) {
  const RequestTable::Target* target = parts_.requests->target(output.id);
  RUDDER_CHECK(target != nullptr, "output for sequence {}, which has ended", output.id.value);
  OpenRequest& request = *target->request;
  const int32_t index = target->choice;
  const Result<void> delivered = contain([&] { deliver(request, index, output, now_us); });
  if (!delivered) fail_choice(request, index, delivered.error());
  parts_.requests->forget_if_finished(request);
}

void Delivery::deliver(OpenRequest& request, int32_t index, const sched::SequenceOutput& output,
                       int64_t now_us) {
  OpenChoice& choice = request.choices[static_cast<size_t>(index)];
  choice.cached_tokens = output.cached_tokens;
  choice.cached_host_tokens = output.cached_host_tokens;
  choice.cached_disk_tokens = output.cached_disk_tokens;
  choice.accepted_tokens += output.num_accepted;
  choice.rejected_tokens += output.num_draft - output.num_accepted;

  Event event;
  event.id = request.id;
  event.choice = index;
  event.prompt_logprobs.reserve(output.scored.size());
  for (size_t i = 0; i < output.scored.size(); ++i) {
    event.prompt_logprobs.push_back(output_token(output.scored[i], &output.scores[i]));
  }
  if (output.clipped_samples > 0) {
    parts_.metrics->note_clipped(output.clipped_samples);
    log_warn(
        "request {}: {} samples of its prompt's scores were clipped at 2^18; its gates saw less",
        request.id.value, output.clipped_samples);
  }
  if (ends_on_rows(request, index, output, event, now_us)) return;
  const bool stopped = push_tokens(output, choice, event) && !RUDDER_MUTANT(kStopStringRace);
  parts_.metrics->note_tokens(request, choice, event.tokens.size(), now_us);
  if (stopped) {
    if (output.end == step::SeqEnd::kNone) parts_.scheduler->finish(output.id);
    finish_choice(request, index, std::move(event), FinishReason::kStop, now_us);
  } else if (output.end == step::SeqEnd::kStopId) {
    const int32_t token = output.tokens.back();
    if (!is_eos(request, token)) event.stop_token = token;
    finish_choice(request, index, std::move(event), FinishReason::kStop, now_us);
  } else if (output.end == step::SeqEnd::kLength) {
    finish_choice(request, index, std::move(event), FinishReason::kLength, now_us);
  } else if (output.end == step::SeqEnd::kNumerical) {
    if (RUDDER_MUTANT(kNumericalHidden)) {
      return finish_choice(request, index, std::move(event), FinishReason::kStop, now_us);
    }
    event.error = parts_.constraints->numerical_error(output.id);
    finish_choice(request, index, std::move(event), FinishReason::kError, now_us);
  } else {
    event.usage = usage(request, choice);
    send(request, std::move(event));
  }
}

// What the choice's rows say of its tokens so far. Those of `output` were sampled behind them:
// where the choice ends they are dropped.
bool Delivery::ends_on_rows(OpenRequest& request, int32_t index,
                            const sched::SequenceOutput& output, Event& event, int64_t now_us) {
  const steer::capture::CaptureSpec* const spec = request.taps.capture.get();
  if (spec == nullptr || !spec->stop_when) return false;
  const OpenChoice& choice = request.choices[static_cast<size_t>(index)];
  const bool is_met = choice.stop_count.is_met(*spec->stop_when) &&
                      choice.output.num_tokens() >= request.min_tokens;
  if (!is_met && !choice.lost_row) return false;
  if (RUDDER_MUTANT(kStopWhenLate))
    push_tokens(output, request.choices[static_cast<size_t>(index)], event);
  if (output.end == step::SeqEnd::kNone) parts_.scheduler->finish(output.id);
  if (is_met) {
    event.stop_reason = fmt::format("stop_when.{}", spec->stop_when->watch.kind());
    finish_choice(request, index, std::move(event), FinishReason::kStop, now_us);
  } else {
    event.error =
        Error{ErrorCode::kOverloaded,
              "a row that stop_when reads was lost: too much is captured at a time", "stop_when"};
    finish_choice(request, index, std::move(event), FinishReason::kError, now_us);
  }
  return true;
}

void Delivery::deliver(CaptureNews news) {
  OpenRequest* const request = parts_.requests->find(news.id);
  if (request == nullptr) return;  // it was cancelled
  OpenChoice& choice = request->choices[static_cast<size_t>(news.choice)];
  if (!choice.open) return;
  if (news.event) {
    Event event;
    event.id = request->id;
    event.choice = news.choice;
    event.usage = usage(*request, choice);
    event.captures.push_back(std::move(*news.event));
    send(*request, std::move(event));
  }
  if (!news.results) return;
  RUDDER_CHECK(choice.last_event, "results of captures before the end of request {}",
               request->id.value);
  choice.last_event->capture_results = std::move(news.results);
  send_last_event(*request, choice, std::move(*choice.last_event));
  parts_.requests->forget_if_finished(*request);
}

// Asked to ignore it, an end-of-sequence id can only be one of the request's own stop ids.
bool Delivery::is_eos(const OpenRequest& request, int32_t token) const {
  const std::vector<int32_t>& eos = *parts_.eos_ids;
  return !request.ignore_eos && std::find(eos.begin(), eos.end(), token) != eos.end();
}

void Delivery::finish_choice(OpenRequest& request, int32_t index, Event event, FinishReason reason,
                             int64_t now_us, Captures captures) {
  OpenChoice& choice = request.choices[static_cast<size_t>(index)];
  RUDDER_CHECK(choice.open);
  const bool ran_out = reason == FinishReason::kStop || reason == FinishReason::kLength;
  if (ran_out && choice.output.finish(event)) {
    reason = FinishReason::kStop;
    event.stop_token.reset();
  }
  const sched::SequenceId sequence = request.sequences[static_cast<size_t>(index)];
  parts_.requests->forget_sequence(sequence);
  parts_.constraints->forget(sequence);
  event.id = request.id;
  event.choice = index;
  event.finish = reason;
  event.usage = usage(request, choice);
  parts_.metrics->note_finish(request, choice, reason, now_us);
  end_sequence(request, choice);
  if (choice.capture.value != 0 && !RUDDER_MUTANT(kLastEventUnheld)) {
    const bool publish = captures == Captures::kPublished;
    parts_.captures->end(choice, publish);
    if (publish && request.tells_captures) {
      return hold_last_event(request, choice, std::move(event));
    }
  }
  send_last_event(request, choice, std::move(event));
}

// The choice's sequence is in no plan from now on. The table rows are those of all choices
// together.
void Delivery::end_sequence(OpenRequest& request, OpenChoice& choice) {
  RUDDER_CHECK(choice.has_sequence, "a sequence of request {} ends twice", request.id.value);
  choice.has_sequence = false;
  parts_.taps->end_sequence(request);
}

void Delivery::refuse(const Submission& submission, const Error& error) {
  const RequestParams& params = submission.request.params();
  for (int32_t i = 0; i < params.n; ++i) {
    Event event;
    event.id = submission.id;
    event.choice = i;
    event.finish = FinishReason::kError;
    event.error.emplace(error);
    event.usage.prompt_tokens = static_cast<int32_t>(params.prompt.size());
    static_cast<void>(contain([&] { submission.sink(std::move(event)); }));
  }
}

void Delivery::fail_request(RequestId id, const Error& error) {
  log_error("request {}: {}", id.value, error.to_string());
  end_request(id, FinishReason::kError, error);
}

void Delivery::end_request(RequestId id, FinishReason reason, const std::optional<Error>& error) {
  OpenRequest* const found = parts_.requests->find(id);
  if (found == nullptr) return;  // it has finished
  OpenRequest& request = *found;
  const int64_t now_us = parts_.clock->now_us();
  for (size_t i = 0; i < request.choices.size(); ++i) {
    OpenChoice& choice = request.choices[i];
    if (!choice.open) continue;
    if (RUDDER_MUTANT(kPartialCancel) && i > 0) break;
    if (choice.last_event) {  // nobody waits for what became of its captures
      send_last_event(request, choice, std::move(*choice.last_event));
      continue;
    }
    if (!RUDDER_MUTANT(kCancelKeepsSequence)) parts_.scheduler->finish(request.sequences[i]);
    Event event;
    event.error = error;
    finish_choice(request, static_cast<int32_t>(i), std::move(event), reason, now_us,
                  Captures::kDiscarded);
  }
  parts_.requests->forget_if_finished(request);
}

void Delivery::end_every_request(FinishReason reason, const std::optional<Error>& error) {
  for (const RequestId id : parts_.requests->ids()) end_request(id, reason, error);
}

void Delivery::end_failed() {
  for (auto& [sequence, error] : parts_.constraints->failed()) {
    const RequestTable::Target* target = parts_.requests->target(sequence);
    if (target == nullptr || RUDDER_MUTANT(kFailedConstraintGoesOn)) continue;
    const auto [request, choice] = *target;
    parts_.scheduler->finish(sequence);
    Event event;
    event.error = std::move(error);
    finish_choice(*request, choice, std::move(event), FinishReason::kError, parts_.clock->now_us());
    parts_.requests->forget_if_finished(*request);
  }
  parts_.constraints->failed().clear();
  for (size_t i = 0; i < broken_.size(); ++i) {  // its last events may break another
    const OpenRequest* request = parts_.requests->find(broken_[i]);
    if (request == nullptr) continue;
    end_request(request->id, FinishReason::kError, *request->sink_error);
  }
  broken_.clear();
}

// The choice may be anywhere on its way to its end.
void Delivery::fail_choice(OpenRequest& request, int32_t index, const Error& error) {
  log_error("request {}: {}", request.id.value, error.to_string());
  OpenChoice& choice = request.choices[static_cast<size_t>(index)];
  if (!choice.open) return;
  Event event;
  event.id = request.id;
  event.choice = index;
  event.finish = FinishReason::kError;
  event.error = error;
  const sched::SequenceId sequence = request.sequences[static_cast<size_t>(index)];
  if (parts_.requests->target(sequence) == nullptr) {
    return send_last_event(request, choice, std::move(event));
  }
  parts_.scheduler->finish(sequence);
  finish_choice(request, index, std::move(event), FinishReason::kError, parts_.clock->now_us(),
                Captures::kDiscarded);
}

// An event that the request's sink threw at is lost, and so is the request.
void Delivery::send(OpenRequest& request, Event event) {
  if (request.sink_error) return;
  const Result<void> sent = contain([&] { request.sink(std::move(event)); });
  if (sent) return;
  log_error("request {}: its sink threw: {}", request.id.value, sent.error().to_string());
  request.sink_error = sent.error();
  broken_.push_back(request.id);
}

// A sink that has thrown, now or before, is told that and nothing else; what it throws at that is
// passed over.
void Delivery::send_last_event(OpenRequest& request, OpenChoice& choice, Event event) {
  choice.open = false;
  request.num_open -= 1;
  Event failed;
  failed.id = event.id;
  failed.choice = event.choice;
  failed.finish = FinishReason::kError;
  failed.usage = event.usage;
  if (RUDDER_MUTANT(kDoubleFinish)) send(request, Event(event));
  send(request, std::move(event));
  if (!request.sink_error) return;
  failed.error = *request.sink_error;
  static_cast<void>(contain([&] { request.sink(std::move(failed)); }));
}

// What is certain now is sent now; the rest of the event waits for the results of the captures.
void Delivery::hold_last_event(OpenRequest& request, OpenChoice& choice, Event event) {
  if (!event.tokens.empty() || !event.text.empty()) {
    Event now;
    now.id = event.id;
    now.choice = event.choice;
    now.usage = event.usage;
    now.text = std::exchange(event.text, {});
    now.tokens = std::exchange(event.tokens, {});
    now.prompt_logprobs = std::exchange(event.prompt_logprobs, {});
    send(request, std::move(now));
  }
  choice.last_event = std::move(event);
}

}  // namespace rudder::engine
