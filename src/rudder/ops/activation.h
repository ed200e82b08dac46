// The activations of a gated MLP. C++17: nvcc reads it too.
#pragma once

#include <cstdint>

namespace rudder::ops {

enum class Activation : uint8_t { kSilu, kGeluTanh, kGelu, kRelu };

}  // namespace rudder::ops
