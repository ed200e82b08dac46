// Runs the taps of one token at one point on the CPU: its captures and its program, on the row that
// an op holds in fp32. The reference and the fast backend share it, so both give the same bits.
// Formulas: tap/tap_op.h. Several threads may run rows of one op at once.
#pragma once

#include <cstdint>

#include "rudder/ops/tap_args.h"

namespace rudder::cpu {

// Order (docs/contracts/taps.md): capture before, ops, capture after. Dot products and norms are
// summed in fp64; the row h [width] is changed in fp32. Without ops at this point, or with empty
// taps, h keeps its bits.
void run_taps(const ops::Taps& taps, int64_t token, float* h, int64_t width);

}  // namespace rudder::cpu
