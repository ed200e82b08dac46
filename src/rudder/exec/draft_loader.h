// What guesses for a model, from its folder: read, divided among ranks, loaded. Errors name
// speculative-config.model.
#pragma once

#include <cstdint>

#include "rudder/base/result.h"
#include "rudder/exec/make_executor.h"
#include "rudder/exec/model_proposer.h"
#include "rudder/model/spec.h"
#include "rudder/ops/ops.h"

namespace rudder::exec {

// Of limits.draft_model, for `target`: without weights, of all ranks together.
Result<DraftModel> read_draft(const StepLimits& limits, const model::ModelSpec& target);
// What a rank has of it, as its decoder takes it. An Error names what the ranks cannot divide.
Result<void> shard_draft(DraftModel& draft, ops::Rank rank);
// Device bytes of a rank's weights, before they are loaded.
Result<int64_t> draft_weight_bytes(const DraftModel& draft, const StepLimits& limits,
                                   ops::Ops& ops);
// With the rank's weights, in memory of `ops`.
Result<DraftModel> load_draft(const StepLimits& limits, const model::ModelSpec& target,
                              ops::Ops& ops);

}  // namespace rudder::exec
