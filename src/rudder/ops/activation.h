// The activations of a gated MLP. C++17: nvcc reads it too.
#pragma once

#include <cstdint>

namespace rudder::ops {

// What of a row [gate, up] becomes: act(gate) * up; of kClampedSwiglu, whose numbers are below,
// (u + 1) * g * sigmoid(slope * g) with g = min(gate, limit) and u = up within +-limit.
enum class Activation : uint8_t { kSilu, kGeluTanh, kGelu, kRelu, kClampedSwiglu };
inline constexpr float kSwigluLimit = 7.0f;
inline constexpr float kSwigluSlope = 1.702f;

}  // namespace rudder::ops
