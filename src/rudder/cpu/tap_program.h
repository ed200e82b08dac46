// Taps on the CPU: one token's captures and program at one point, on the row that an op holds in
// fp32. Shared by the reference and the fast backend, so that both steer with the same bits.
// Formulas: tap/program.h. Rows of one op may run on several threads at once.
#pragma once

#include <cstdint>

#include "rudder/ops/tap_args.h"

namespace rudder::cpu {

// In the order of the contract (docs/contracts/taps.md): capture before, ops, capture after. Dot
// products and norms are summed in fp64, the row h [width] is changed in fp32; it keeps its bits
// where there is nothing to do. Taps that are empty are nothing to do.
void run_taps(const ops::Taps& taps, int64_t token, float* h, int64_t width);

}  // namespace rudder::cpu
