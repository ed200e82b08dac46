// Steering and capture in EngineCore: who waits for rows of the tap table, who holds them, and
// where captured rows go.
#include <limits>
#include <utility>
#include <vector>

#include "rudder/base/check.h"
#include "rudder/base/mutants.h"
#include "rudder/engine/engine_core.h"

namespace rudder::engine {

Result<void> EngineCore::pin(std::vector<steer::KeyedProgram> programs) {
  std::vector<tap::TapSegment> segments;
  for (const steer::KeyedProgram& keyed : programs) {
    segments.push_back({.content = keyed.key, .program = keyed.program});
  }
  RUDDER_TRY_VOID(steer::RowTable::could_ever_fit(limits_.taps, segments));
  mailbox_.pin(std::move(programs));
  return {};
}

// As in the scheduler (kv.I12): who has waited too long goes first, here and there.
void EngineCore::promote_starved() {
  constexpr int32_t kFirst = std::numeric_limits<int32_t>::min();
  std::vector<Open*> starved;
  for (Open* request : waiting_for_taps_) {
    const uint64_t waited = live_.steps - request->waiting_since;
    if (request->priority != kFirst && waited >= static_cast<uint64_t>(settings_.max_wait_steps)) {
      starved.push_back(request);
    }
  }
  for (Open* request : starved) {
    waiting_for_taps_.erase(request);
    request->priority = kFirst;
    waiting_for_taps_.insert(request);
  }
}

// In order: the first that finds no room keeps those behind it waiting, since what is released may
// be just what it needs (tap.T3).
void EngineCore::schedule_waiting() {
  if (!waiting_for_taps_.empty()) promote_starved();
  for (auto next = waiting_for_taps_.begin(); next != waiting_for_taps_.end();) {
    Open& request = **next;
    sched::TapLease lease;
    if (!tables_.lease(*request.unscheduled->params().taps, &lease)) {
      RUDDER_CHECK(tables_.any_held(), "request {} fits into an empty table and does not get in",
                   request.id.value);
      return;
    }
    request.lease = std::move(lease);
    next = waiting_for_taps_.erase(next);
    begin_captures(request);
    schedule(request);
  }
}

// The choice's sequence is in no plan from now on. The rows are those of all choices together.
void EngineCore::end_sequence(Open& request, Choice& choice) {
  RUDDER_CHECK(choice.has_sequence, "a sequence of request {} ends twice", request.id.value);
  choice.has_sequence = false;
  if (request.unscheduled && request.unscheduled->params().taps != nullptr) {
    waiting_for_taps_.erase(&request);
  }
  const bool is_last = --request.num_sequences == 0;
  if (!request.lease || RUDDER_MUTANT(kLeaseLeaked)) return;
  if (!is_last && !RUDDER_MUTANT(kRowReleasedEarly)) return;
  tables_.release(*request.lease);
  request.lease.reset();
}

void EngineCore::begin_captures(Open& request) {
  const RequestParams& params = request.unscheduled->params();
  if (params.taps->capture == nullptr) return;
  for (int32_t i = 0; i < params.n; ++i) {
    steer::capture::CaptureRequest asked;
    asked.spec = params.capture;
    asked.request_id = params.client_id;
    asked.choice = i;
    asked.prompt_len = request.prompt_tokens;
    asked.stream = params.capture_events;
    asked.wait = params.capture_wait;
    asked.on_results = [this, id = request.id, i](steer::capture::CaptureResults&& results) {
      mailbox_.capture_news(
          {.id = id, .choice = i, .event = std::nullopt, .results = std::move(results)});
    };
    if (params.capture_events) {
      asked.on_event = [this, id = request.id, i](steer::capture::CaptureEvent&& event) {
        mailbox_.capture_news(
            {.id = id, .choice = i, .event = std::move(event), .results = std::nullopt});
      };
    }
    request.choices[static_cast<size_t>(i)].capture = captures_->begin(std::move(asked));
  }
}

void EngineCore::hand_out_captures(const step::StepResult& result) {
  captures_by_row_.assign(result.seqs.size(), {});
  for (const sched::CapturedRow& captured : scheduler_.captured_rows()) {
    const auto target = targets_.find(captured.id);
    RUDDER_CHECK(target != targets_.end(), "captured rows of sequence {}, which has ended",
                 captured.id.value);
    const auto& [request, choice] = target->second;
    const int32_t row = captured.row - (RUDDER_MUTANT(kCaptureToNeighbour) && captured.row > 0);
    captures_by_row_[static_cast<size_t>(row)] =
        request->choices[static_cast<size_t>(choice)].capture;
  }
  if (!scheduler_.captured_rows().empty()) captures_->push(result.captured, captures_by_row_);
}

// What is certain now is sent now.
void EngineCore::hold_last_event(const Open& request, Choice& choice, Event event) {
  if (!event.tokens.empty() || !event.text.empty()) {
    Event now;
    now.id = event.id;
    now.choice = event.choice;
    now.usage = event.usage;
    now.text = std::exchange(event.text, {});
    now.tokens = std::exchange(event.tokens, {});
    now.prompt_logprobs = std::exchange(event.prompt_logprobs, {});
    request.sink(std::move(now));
  }
  choice.last_event = std::move(event);
}

void EngineCore::take_capture_news(CaptureNews news) {
  const auto found = requests_.find(news.id);
  if (found == requests_.end()) return;  // it was cancelled
  Open& request = *found->second;
  Choice& choice = request.choices[static_cast<size_t>(news.choice)];
  if (!choice.open) return;
  if (news.event) {
    Event event;
    event.id = request.id;
    event.choice = news.choice;
    event.usage = usage(request, choice);
    event.captures.push_back(std::move(*news.event));
    request.sink(std::move(event));
  }
  if (!news.results) return;
  RUDDER_CHECK(choice.last_event, "results of captures before the end of request {}",
               request.id.value);
  choice.last_event->capture_results = std::move(news.results);
  send_last_event(request, choice, std::move(*choice.last_event));
  forget_if_finished(request);
}

}  // namespace rudder::engine
