#include "rudder/engine/tap_queue.h"

#include <limits>
#include <utility>
#include <vector>

#include "rudder/base/check.h"
#include "rudder/base/mutants.h"

namespace rudder::engine {

// As in the scheduler (kv.I12): who has waited too long goes first, here and there.
void TapQueue::promote_starved(uint64_t steps) {
  constexpr int32_t kFirst = std::numeric_limits<int32_t>::min();
  std::vector<OpenRequest*> starved;
  for (OpenRequest* request : waiting_) {
    const uint64_t waited = steps - request->waiting_since;
    if (request->priority != kFirst && waited >= static_cast<uint64_t>(max_wait_steps_)) {
      starved.push_back(request);
    }
  }
  for (OpenRequest* request : starved) {
    waiting_.erase(request);
    request->priority = kFirst;
    waiting_.insert(request);
  }
}

// In order: the first that finds no room keeps those behind it waiting, since what is released may
// be just what it needs (tap.T3).
OpenRequest* TapQueue::pop(uint64_t steps) {
  if (waiting_.empty()) return nullptr;
  promote_starved(steps);
  OpenRequest& request = **waiting_.begin();
  sched::TapLease lease;
  if (!tables_.lease(*request.taps.sequence, &lease)) {
    RUDDER_CHECK(tables_.any_held(), "request {} fits into an empty table and does not get in",
                 request.id.value);
    return nullptr;
  }
  request.lease = std::move(lease);
  waiting_.erase(waiting_.begin());
  return &request;
}

void TapQueue::end_sequence(OpenRequest& request) {
  if (request.unscheduled && request.taps.sequence != nullptr) waiting_.erase(&request);
  const bool is_last = --request.num_sequences == 0;
  if (!request.lease || RUDDER_MUTANT(kLeaseLeaked)) return;
  if (!is_last && !RUDDER_MUTANT(kRowReleasedEarly)) return;
  tables_.release(*request.lease);
  request.lease.reset();
}

}  // namespace rudder::engine
