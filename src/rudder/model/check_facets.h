// What a model needs of a backend beside the dense forward pass (ops/facets.h): refused by the name
// of what asks for it before anything of the model is loaded, and once more when a decoder is made.
#pragma once

#include "rudder/base/result.h"
#include "rudder/model/spec.h"
#include "rudder/ops/ops.h"

namespace rudder::model {

// kUnsupported; `where` is the key of config.json that such layers come from.
Result<void> check_facets(const ModelSpec& spec, ops::Ops& ops);

}  // namespace rudder::model
