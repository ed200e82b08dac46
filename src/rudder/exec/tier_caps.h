// How many records lie behind the device's memory (step/records.h), from the settings. Pure
// functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/exec/memory_budget.h"
#include "rudder/exec/settings.h"
#include "rudder/ops/ops.h"
#include "rudder/step/executor.h"

namespace rudder::exec {

// kUnsupported, where = "kv-host-gib".
Result<void> tiers_unsupported(const std::string& device);

// Of a block of every KV group and a state the bytes; `num_groups` of the former are in a record.
// Where sequences have states, half of host memory is for records with a checkpoint.
// kInvalidArgument, where = the setting: a folder without bytes, bytes for less than two records.
Result<step::TierCaps> tier_caps(const ExecSettings::Tiers& settings, int32_t num_groups,
                                 int64_t block_bytes, int64_t checkpoint_bytes);

// Of a model with that budget on these devices: nothing where the settings ask for none.
// kUnsupported, where = "kv-host-gib": nothing copies records there.
Result<step::TierCaps> budget_tiers(const ExecSettings::Tiers& asked, const MemoryBudget& budget,
                                    const std::vector<ops::Ops*>& devices);

}  // namespace rudder::exec
