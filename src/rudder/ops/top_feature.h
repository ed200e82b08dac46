// TopFeature: one of the largest features of a row, as a reader writes it. Plain data; this header
// is C++17, because nvcc reads it too.
#pragma once

#include <cstdint>

namespace rudder::ops {

// Those above 0, the largest first, of equal ones the lower number. Behind the last: kNoFeature.
struct TopFeature {
  int32_t feature;
  float value;
};
inline constexpr int32_t kNoFeature = -1;
inline constexpr int32_t kMostTopFeatures = 1024;  // of a row

}  // namespace rudder::ops
