// EngineCore: how it comes to rest and goes on (engine/rest.h). The engine thread's.
#include "rudder/base/mutants.h"
#include "rudder/engine/engine_core.h"

namespace rudder::engine {

void EngineCore::begin(OpenRequest& request) {
  if (request.taps.needs_rows()) {
    taps_.push(request);
  } else {
    schedule(request);
  }
}

void EngineCore::follow(const RestOrder& order) {
  if (order.ask) {
    rest_.begin(order.ask->mode);
    if (order.ask->mode != RestMode::kAbort) return;
    for (const RequestId id : requests_.ids()) {
      if (!requests_.find(id)->first_planned_us && !order.ask->refusal) continue;
      delivery_.end_request(id, FinishReason::kError, order.ask->ended);
    }
    return;
  }
  if (order.identity && rest_.is_at_rest()) scheduler_.rename_model(*order.identity);
  for (const RequestId id : rest_.end()) {
    if (OpenRequest* const request = requests_.find(id)) begin(*request);
  }
}

// Copies that outlast their steps have to be seen to their ends.
bool EngineCore::may_launch() const {
  return !rest_.is_at_rest() &&
         (!rest_.is_coming() || rest_.finishes() || scheduler_.stats().states.copies_in_flight > 0);
}

void EngineCore::settle() {
  if (dead_ || !rest_.is_coming() || rest_.is_at_rest() || !in_flight_.empty()) return;
  if (scheduler_.stats().states.copies_in_flight > 0) return;
  if (rest_.finishes() && (scheduler_.has_work() || taps_.size() > 0)) return;
  if (!RUDDER_MUTANT(kRestKeepsPrefixes)) scheduler_.start_afresh();
  rest_.settle();
}

}  // namespace rudder::engine
