// A check that weights are those of a spec. The loader loads what the spec says; this catches
// weights of another one. Load time, one thread.
#pragma once

#include "rudder/model/spec.h"
#include "rudder/model/weights.h"
#include "rudder/ops/comm.h"

namespace rudder::model {

// Ends the program where they are not. On a rank of a group both are its part.
void check_weights(const ModelSpec& spec, const Weights& weights, ops::Rank rank);

}  // namespace rudder::model
