// GatedValues: a toy mixer that reads its input in both forms (model::reads_act), as layers with a
// router or an adapter do. A product makes values of a token from the form that it takes; the
// token's row in act makes a number that multiplies them. It looks at no other token and keeps
// nothing. It computes on the host, in stream order where the device is a wrapper
// (forwarding_ops.h). No config.json names it. Tests only.
#pragma once

#include <cstdint>
#include <memory>

#include "rudder/model/custom_mixer.h"

namespace rudder::testing {

std::shared_ptr<const model::MixerKind> make_gated_values(int64_t width);

}  // namespace rudder::testing
