#include "rudder/engine/rest.h"

#include "rudder/base/mutants.h"
#include "rudder/engine/delivery.h"
#include "rudder/engine/request_table.h"
#include "rudder/engine/tap_queue.h"
#include "rudder/sched/scheduler.h"

namespace rudder::engine {

// Who rests already and kept something may be asked to rest without it.
std::vector<RequestId> Rest::follow(const RestOrder& order) {
  parts_.scheduler->tiers().pause(order.ask.has_value());
  order_ = order.number;
  if (order.ask) {
    mode_ = order.ask->mode;
    keeps_cache_ = order.ask->keeps_cache;
    if (mode_ == RestMode::kAbort) end_those_that_run(*order.ask);
    if (is_at_rest()) come_to_rest();
    return {};
  }
  if (order.identity && is_at_rest()) parts_.scheduler->start_afresh(&*order.identity);
  mode_.reset();
  resting_by_.store(0, std::memory_order_release);
  return std::exchange(held_, {});
}

void Rest::end_those_that_run(const RestAsk& ask) {
  for (const RequestId id : parts_.requests->ids()) {
    if (!parts_.requests->find(id)->first_planned_us && !ask.refusal) continue;
    parts_.delivery->end_request(id, FinishReason::kError, ask.ended);
  }
}

// Copies that outlast their steps have to be seen to their ends.
bool Rest::may_launch() const {
  return !is_at_rest() && (!mode_ || mode_ == RestMode::kWait ||
                           parts_.scheduler->stats().states.copies_in_flight > 0);
}

void Rest::settle() {
  if (!mode_ || is_at_rest() || parts_.scheduler->stats().states.copies_in_flight > 0) return;
  const bool has_work = parts_.scheduler->has_work() || parts_.taps->size() > 0;
  if (mode_ == RestMode::kWait && has_work) return;
  come_to_rest();
}

void Rest::come_to_rest() {
  if (!keeps_cache_ && !RUDDER_MUTANT(kRestKeepsPrefixes)) parts_.scheduler->start_afresh();
  resting_by_.store(order_, std::memory_order_release);
}

}  // namespace rudder::engine
