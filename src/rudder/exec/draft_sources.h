// The list of proposers on the device (draft_source.h), by the kind of their checkpoint.
// make_executor calls it at start.
#pragma once

#include <memory>

#include "rudder/base/result.h"
#include "rudder/exec/draft_source.h"
#include "rudder/exec/make_executor.h"
#include "rudder/model/spec.h"
#include "rudder/ops/ops.h"

namespace rudder::exec {

// What guesses for the whole model `target`, without weights; null: nothing does on the device.
// Errors name speculative-config.model, or the key that asks for what there is not.
Result<std::unique_ptr<DraftSource>> read_source(const StepLimits& limits,
                                                 const model::ModelSpec& target);
// It becomes the rank's part (DraftSource::shard); errors say that they are of the proposer.
Result<void> shard_source(DraftSource& source, ops::Rank rank);

}  // namespace rudder::exec
