#include "rudder/engine/request_starter.h"

#include <utility>
#include <vector>

#include "rudder/base/contain.h"
#include "rudder/engine/choices.h"

namespace rudder::engine {

void RequestStarter::begin(OpenRequest& request) {
  if (rest_.is_coming()) {
    rest_.hold(request.id);
  } else if (request.taps.needs_rows()) {
    parts_.taps->push(request);
  } else {
    schedule(request);
  }
}

void RequestStarter::follow(const RestOrder& order) {
  for (const RequestId id : rest_.follow(order)) {
    if (OpenRequest* const request = parts_.requests->find(id)) begin(*request);
  }
}

void RequestStarter::begin_waiting() {
  while (OpenRequest* request = parts_.taps->pop(parts_.scheduler->stats().steps)) {
    const Result<void> begun = contain([&] { parts_.captures->begin(*request); });
    if (begun) {
      schedule(*request);
    } else {
      parts_.delivery->fail_request(request->id, begun.error());
    }
  }
}

void RequestStarter::schedule(OpenRequest& request) {
  const Request accepted = std::move(*request.unscheduled);
  request.unscheduled.reset();
  Result<std::vector<sched::NewSequence>> sequences =
      contain([&]() -> Result<std::vector<sched::NewSequence>> {
        return make_sequences(request, accepted);
      });
  if (!sequences) return parts_.delivery->fail_request(request.id, sequences.error());
  for (sched::NewSequence& sequence : *sequences) {
    const Result<void> added = parts_.scheduler->add(std::move(sequence));
    if (added) continue;
    return parts_.delivery->end_request(request.id, FinishReason::kError, added.error());
  }
}

}  // namespace rudder::engine
