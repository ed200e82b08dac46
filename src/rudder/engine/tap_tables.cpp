#include "rudder/engine/tap_tables.h"

#include <algorithm>

#include "rudder/base/check.h"
#include "rudder/base/mutants.h"

namespace rudder::engine {

bool TapTables::lease(const tap::SequenceTaps& taps, sched::TapLease* lease) {
  const std::vector<tap::TapSegment> segments = taps.leased();
  if (!rows_.lease(segments, lease->rows)) {
    lease->rows.assign(segments.size(), 0);
    if (!RUDDER_MUTANT(kRunsUnsteered)) return false;
  }
  lease->capture_set = -1;
  if (taps.capture != nullptr) {
    lease->capture_set = lease_set(taps.capture);
    if (lease->capture_set < 0) {
      rows_.release(lease->rows);
      return false;
    }
  }
  ++num_leases_;
  return true;
}

// Reuses the unused entry that was used longest ago.
int32_t TapTables::lease_set(const std::shared_ptr<const tap::CaptureSet>& set) {
  CaptureSetEntry* entry = nullptr;
  for (CaptureSetEntry& candidate : sets_) {
    if (candidate.set != nullptr && *candidate.set == *set) {
      entry = &candidate;
      break;
    }
    const bool is_older = entry == nullptr || candidate.last_use < entry->last_use;
    if (candidate.users == 0 && is_older) entry = &candidate;
  }
  if (entry == nullptr) return -1;
  const auto number = static_cast<int32_t>(entry - sets_.data());
  if (entry->set == nullptr || *entry->set != *set) {
    entry->set = set;
    edits_.captures.push_back({.capture_set = number, .set = set});
  }
  ++entry->users;
  return number;
}

void TapTables::release(const sched::TapLease& lease) {
  rows_.release(lease.rows);
  if (lease.capture_set >= 0) {
    CaptureSetEntry& entry = sets_[static_cast<size_t>(lease.capture_set)];
    RUDDER_CHECK(entry.users > 0, "capture set {} is released twice", lease.capture_set);
    --entry.users;
    entry.last_use = ++clock_;
  }
  --num_leases_;
}

sched::TableEdits& TapTables::edits() {
  if (rows_.has_edits()) rows_.take_edits(edits_.taps);
  return edits_;
}

}  // namespace rudder::engine
