// Rows of a weight as its file stores it, as numbers. CPU backends read every format with it when
// they pack a weight (Ops::make_linear), the loader what a backend does not keep. Any thread.
#pragma once

#include <cstdint>

#include "rudder/ops/args.h"

namespace rudder::ops {

// Row `row` of the part: [part.in()]. The formulas are those of WeightFormat, one f32
// operation after the other.
void read_stored_row(const LinearPart& part, int64_t row, float* to);

}  // namespace rudder::ops
