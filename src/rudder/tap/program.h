// Program: what steering does to one token's activations, point by point. steer writes programs, a
// plan carries them to the executor, the macro-ops of a backend run them. Plain data; normative
// text: docs/contracts/taps.md. One op of it, and the formulas: tap_op.h.
#pragma once

#include <memory>
#include <vector>

#include "rudder/tap/dictionary_image.h"
#include "rudder/tap/site.h"
#include "rudder/tap/tap_op.h"

namespace rudder::tap {

struct ProgramOp {
  Point point;
  TapOp op;
};

// What one row of the tap table holds. Immutable once shared.
struct Program {
  std::vector<ProgramOp> ops;  // by point ascending, in the order they run within a point
  std::vector<float> vectors;
  std::vector<std::shared_ptr<const DictionaryImage>> dictionaries = {};  // no two with one key

  bool empty() const { return ops.empty(); }
};

}  // namespace rudder::tap
