// Tells the taps which sites each layer of a model has, and how wide they are. exec calls it once;
// the result is a plain value.
#pragma once

#include "rudder/model/spec.h"
#include "rudder/ops/comm.h"
#include "rudder/tap/site.h"

namespace rudder::model {

// `act` is the dtype of activations. The decoder names exactly these points.
// `spec` is that of the rank's part; widths are those of whole rows.
tap::Geometry tap_geometry(const ModelSpec& spec, tensor::DType act, ops::Rank rank = {});

}  // namespace rudder::model
