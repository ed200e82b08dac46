// The spec of a checkpoint as the settings of an executor want it: the loader and the memory budget
// go by it (make_executor.h).
#pragma once

#include "rudder/base/result.h"
#include "rudder/exec/settings.h"
#include "rudder/model/spec.h"
#include "rudder/ops/ops.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::exec {

// Of the whole model; `device` is one of those that have it. kInvalidArgument, "layer-embeddings":
// it has no table that could lie on the host; "enable-expert-parallel": it has no experts that
// ranks could divide. kUnsupported, "enable-expert-parallel": the ranks are GPUs.
Result<model::ModelSpec> read_model(const weights::Checkpoint& checkpoint,
                                    const ExecSettings& settings, ops::Ops& device);

}  // namespace rudder::exec
