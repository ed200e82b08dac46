// TapQueue: the requests that wait for rows of the tap table, for a capture set or for a row of the
// adapter table, and the tables that they wait for. Requests get in by priority and arrival, all
// choices of one together; a request that waited too long goes first (tap.T3). Owned by EngineCore;
// the engine thread's alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>

#include "rudder/engine/adapter_rows.h"
#include "rudder/engine/open_request.h"
#include "rudder/engine/tap_tables.h"

namespace rudder::engine {

class TapQueue {
 public:
  // A request that waited for `max_wait_steps` steps goes first.
  TapQueue(const tap::Limits& limits, const lora::TableSize& adapters, int32_t max_wait_steps)
      : tables_(limits), adapters_(adapters), max_wait_steps_(max_wait_steps) {}

  // `request.taps` needs rows. The request stays where it is while it waits.
  void push(OpenRequest& request);
  // The first request that waits, out of the queue and with its lease; null when none waits or what
  // is free is not enough for it. `steps` is the number of steps launched so far.
  OpenRequest* pop(uint64_t steps);
  // One sequence of the request is in no plan from now on. With its last one the lease goes back.
  void end_sequence(OpenRequest& request);

  // For the next plan; what the plan takes along is taken out.
  sched::TableEdits& edits();
  bool any_held() const { return tables_.any_held() || adapters_.any_held(); }

  size_t size() const { return waiting_.size(); }
  TapTables& tables() { return tables_; }
  const TapTables& tables() const { return tables_; }

 private:
  struct ByUrgency {
    bool operator()(const OpenRequest* a, const OpenRequest* b) const {
      return a->priority != b->priority ? a->priority < b->priority : a->id < b->id;
    }
  };

  void promote_starved(uint64_t steps);
  bool lease(const ResolvedTaps& taps, sched::TapLease& lease);
  void release(const OpenRequest& request);

  TapTables tables_;
  AdapterRows adapters_;
  std::set<OpenRequest*, ByUrgency> waiting_;
  const int32_t max_wait_steps_;
};

}  // namespace rudder::engine
