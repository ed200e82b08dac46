// The activations of a gated MLP. C++17: nvcc reads it too.
#pragma once

#include <cstdint>

namespace rudder::ops {

// What of a row [gate, up] becomes: act(gate) * up; of kClampedSwiglu, whose numbers are below,
// (u + 1) * g * sigmoid(slope * g) with g = min(gate, limit) and u = up within +-limit; of
// kLimitedSilu silu(g) * u, with a limit of its own.
enum class Activation : uint8_t { kSilu, kGeluTanh, kGelu, kRelu, kClampedSwiglu, kLimitedSilu };
inline constexpr float kSwigluLimit = 7.0f;
inline constexpr float kSwigluSlope = 1.702f;
inline constexpr float kSiluLimit = 10.0f;

}  // namespace rudder::ops
