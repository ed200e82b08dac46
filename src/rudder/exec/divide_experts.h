// The whole model that ranks divide, with the way in which they divide its experts.
#pragma once

#include "rudder/base/result.h"
#include "rudder/exec/settings.h"
#include "rudder/model/spec.h"
#include "rudder/ops/ops.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::exec {

// `device`: one of the ranks. Errors name "enable-expert-parallel": kInvalidArgument, the model has
// no experts; kUnsupported, the ranks are GPUs.
Result<model::ModelSpec> read_divided_spec(const weights::Checkpoint& checkpoint,
                                           const ExecSettings& settings, ops::Ops& device);

}  // namespace rudder::exec
