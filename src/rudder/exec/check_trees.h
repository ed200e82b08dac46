// Whether the trees of drafts that the settings ask for may run here. Called once, as executors are
// made or budgeted, before anything is loaded.
#pragma once

#include <cstdint>

#include "rudder/base/result.h"
#include "rudder/exec/make_executor.h"
#include "rudder/model/spec.h"
#include "rudder/ops/ops.h"

namespace rudder::exec {

// kUnsupported names the key of speculative-config that asks for trees, and what does not run them:
// the backend, stages, or the kind of layer (model::runs_trees). Fine where nothing asks for any.
Result<void> check_trees(const StepLimits& limits, const model::ModelSpec& spec, ops::Ops& ops,
                         int32_t num_stages);

}  // namespace rudder::exec
