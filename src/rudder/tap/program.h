// A steering program: what is done to one token's activations, point by point. Written by steer,
// carried by a step plan, run by the ops of a backend. Plain data; normative text:
// docs/contracts/taps.md. One op of it, and the formulas: tap_op.h.
#pragma once

#include <vector>

#include "rudder/tap/site.h"
#include "rudder/tap/tap_op.h"

namespace rudder::tap {

struct ProgramOp {
  Point point;
  TapOp op;
};

// Of one row of the table. Immutable once shared.
struct Program {
  std::vector<ProgramOp> ops;  // by point ascending, in the order they run within a point
  std::vector<float> vectors;

  bool empty() const { return ops.empty(); }
};

}  // namespace rudder::tap
