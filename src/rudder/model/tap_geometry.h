// What the taps need to know of a model: which sites each layer has, and how wide they are. Called
// once by exec; a plain value.
#pragma once

#include "rudder/model/spec.h"
#include "rudder/tap/site.h"

namespace rudder::model {

// `act` is the dtype of activations. The decoder names exactly these points.
tap::Geometry tap_geometry(const ModelSpec& spec, tensor::DType act);

}  // namespace rudder::model
