// The kinds of what ops with a state do (state_args.h). Plain data; C++17: kernels read it too.
#pragma once

#include <cstdint>

namespace rudder::ops {

// An op finds how many tokens its part of a state is of at the part's begin, on a line of its own.
inline constexpr int64_t kStateLine = 64;

// How a recurrence takes a token in.
enum class RecurRule : uint8_t {
  kDelta,  // corrects what the state gives for k, which has length one as q has
  kSum,    // adds
};

// What a gate multiplies by.
enum class GateFunction : uint8_t { kSigmoid, kSilu, kItself };

// The most that a backend's ops take.
struct StateLimits {
  int32_t filter = INT32_MAX;   // ConvolveArgs.length
  int32_t key_dim = INT32_MAX;  // RecurArgs.key_dim
  bool decay_floor = true;      // RecurLimits.decay_floor
};

}  // namespace rudder::ops
