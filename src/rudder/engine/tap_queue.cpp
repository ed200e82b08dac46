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

void TapQueue::push(OpenRequest& request) {
  waiting_.insert(&request);
  if (request.taps.adapter != nullptr) ++request.taps.adapter->waiting;
}

// All or nothing.
bool TapQueue::lease(const ResolvedTaps& taps, sched::TapLease& lease) {
  if (taps.adapter != nullptr) {
    lease.adapter_row = adapters_.lease(taps.adapter->adapter);
    if (lease.adapter_row == lora::kNoRow) return false;
  }
  if (taps.sequence == nullptr || tables_.lease(*taps.sequence, &lease)) return true;
  if (lease.adapter_row != lora::kNoRow) adapters_.release(lease.adapter_row);
  return false;
}

void TapQueue::release(const OpenRequest& request) {
  if (request.taps.sequence != nullptr) tables_.release(*request.lease);
  if (request.lease->adapter_row == lora::kNoRow) return;
  adapters_.release(request.lease->adapter_row);
  --request.taps.adapter->running;
}

sched::TableEdits& TapQueue::edits() {
  sched::TableEdits& edits = tables_.edits();
  adapters_.take_edits(edits.adapters);
  return edits;
}

// In order: the first that finds no room keeps those behind it waiting, since what is released may
// be just what it needs (tap.T3).
OpenRequest* TapQueue::pop(uint64_t steps) {
  if (waiting_.empty()) return nullptr;
  promote_starved(steps);
  OpenRequest& request = **waiting_.begin();
  sched::TapLease rows;
  if (!lease(request.taps, rows)) {
    RUDDER_CHECK(any_held(), "request {} fits into empty tables and does not get in",
                 request.id.value);
    return nullptr;
  }
  request.lease = std::move(rows);
  waiting_.erase(waiting_.begin());
  if (request.taps.adapter != nullptr) {
    --request.taps.adapter->waiting;
    ++request.taps.adapter->running;
  }
  return &request;
}

void TapQueue::end_sequence(OpenRequest& request) {
  if (request.unscheduled && request.taps.needs_rows() && waiting_.erase(&request) > 0 &&
      request.taps.adapter != nullptr) {
    --request.taps.adapter->waiting;
  }
  const bool is_last = --request.num_sequences == 0;
  if (!request.lease || RUDDER_MUTANT(kLeaseLeaked)) return;
  if (!is_last && !RUDDER_MUTANT(kRowReleasedEarly)) return;
  release(request);
  request.lease.reset();
}

}  // namespace rudder::engine
