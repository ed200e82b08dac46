// TapTables: counts who holds which entries of the executor's tables: rows of the tap table
// (steer::RowTable) and capture sets. Sequences of equal content share an entry. Engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "rudder/sched/sequence.h"
#include "rudder/steer/row_table.h"
#include "rudder/tap/capture.h"
#include "rudder/tap/sequence_taps.h"

namespace rudder::engine {

class TapTables {
 public:
  explicit TapTables(const tap::Limits& limits)
      : rows_(limits), sets_(static_cast<size_t>(limits.num_capture_sets)) {}

  // All that the taps ask for, or nothing and false: ask again after a release.
  bool lease(const tap::SequenceTaps& taps, sched::TapLease* lease);
  // No plan that is built from now on uses the lease.
  void release(const sched::TapLease& lease);
  bool any_held() const { return num_leases_ > 0; }

  void pin(const steer::KeyedProgram& program) { rows_.pin(program); }
  void unpin(const tap::ContentKey& key) { rows_.unpin(key); }

  // For the next plan; what the plan takes along is taken out.
  sched::TableEdits& edits();

  const steer::RowTable& rows() const { return rows_; }

 private:
  struct CaptureSetEntry {
    std::shared_ptr<const tap::CaptureSet> set;
    int32_t users = 0;
    uint64_t last_use = 0;
  };

  int32_t lease_set(const std::shared_ptr<const tap::CaptureSet>& set);  // -1: none is free

  steer::RowTable rows_;
  std::vector<CaptureSetEntry> sets_;
  sched::TableEdits edits_;
  uint64_t clock_ = 0;
  int32_t num_leases_ = 0;
};

}  // namespace rudder::engine
