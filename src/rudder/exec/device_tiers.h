// The tiers of cached prefixes behind a device's memory (record_memory.h), as an executor starts
// them.
#pragma once

#include <memory>
#include <string>

#include "rudder/base/result.h"
#include "rudder/exec/kv_layout.h"
#include "rudder/exec/record_memory.h"
#include "rudder/ops/copy_lane.h"
#include "rudder/ops/ops.h"
#include "rudder/step/executor.h"
#include "rudder/step/plan.h"

namespace rudder::exec {

// It runs and copies nothing, and lasts until a copy of a record is done.
inline bool is_nothing(const step::StepPlan& plan) {
  return plan.seqs.empty() && plan.copies_before.empty() && plan.record_copies.empty();
}

// By which its records are copied. kUnsupported, where = "kv-host-gib": it has none.
Result<std::unique_ptr<ops::CopyLane>> lane_of(ops::Ops& ops);

// Of a device with this KV cache (kv_layout.h's pool) and these states (StateMemory::pool()). Null
// where the capacity has no tiers. Errors: as lane_of, RecordFiles::open, of `folder`, and
// RecordMemory::start.
Result<std::unique_ptr<RecordMemory>> start_tiers(ops::Ops& ops, const step::Capacity& capacity,
                                                  const KvLayout& layout, const ops::View& pool,
                                                  const ops::View& states,
                                                  const std::string& folder);

}  // namespace rudder::exec
