// LowPrecisionOps: a backend as a GPU's may be, on the CPU: activations and KV are bf16, linears
// multiply F8E4M3 by F8E4M3, and shapes that are no multiple of 16 are refused. Every op is the
// reference's between roundings. Takes the paths that the CPU's own backends do not: quantised
// operands in the decoder, tolerances in the conformance suite. Tests only.
#pragma once

#include <memory>

#include "rudder/ops/ops.h"

namespace rudder::testing {

std::unique_ptr<ops::Ops> make_low_precision_ops();

}  // namespace rudder::testing
