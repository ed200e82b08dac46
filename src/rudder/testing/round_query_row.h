// What attention over a cache of F8E4M3 may multiply in place of a query (ADR 0069): the row of one
// head of one token, multiplied by a power of two of its own, rounded to F8E4M3 and divided again.
// Tests only; any thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "rudder/tensor/dtype.h"

namespace rudder::testing {

// Puts the row's largest magnitude in [128, 256); a row of zeros keeps its values. The factor and
// its inverse are normal numbers of f32, so rows below 2^-118 stay below 128.
inline float query_factor(std::span<const float> row) {
  float largest = 0;
  for (const float value : row) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  if (largest == 0) return 1;
  int exponent = 0;
  std::frexp(largest, &exponent);  // largest < 2^exponent
  return std::ldexp(1.0f, std::min(8 - exponent, 126));
}

// What is not finite becomes NaN: F8E4M3 has no infinity.
inline void round_query_row(std::span<float> row) {
  const float factor = query_factor(row);
  for (float& value : row) {
    value = std::isfinite(value) ? tensor::to_float(tensor::to_f8e4m3(value * factor)) / factor
                                 : std::numeric_limits<float>::quiet_NaN();
  }
}

}  // namespace rudder::testing
