// Which backend runs a model: the one place that names them. A backend that is asked for and not
// there is an Error, never another backend.
#pragma once

#include <memory>

#include "rudder/base/result.h"
#include "rudder/exec/settings.h"
#include "rudder/ops/ops.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::apps {

// dtype "auto" is float32 for a checkpoint stored in float32, else bfloat16.
Result<std::unique_ptr<ops::Ops>> make_backend(const exec::ExecSettings& settings,
                                               const weights::Checkpoint& checkpoint);

}  // namespace rudder::apps
