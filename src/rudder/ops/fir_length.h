// The longest FIR filter of a gate, in keys (FirGate of ops/args.h). C++17: host and kernels both
// include it.
#pragma once

#include <cstdint>

namespace rudder::ops {

inline constexpr int32_t kMaxFirLength = 8;

}  // namespace rudder::ops
