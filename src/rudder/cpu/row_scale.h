// Sums over a row in fp64, and how a dictionary normalises a row (tap/feature.h). Any thread.
#pragma once

#include <cstdint>

#include "rudder/tap/feature.h"
#include "rudder/tensor/dtype.h"

namespace rudder::cpu {

// a . b, in an order that depends on `count` alone.
double dot_f64(const float* a, const float* b, int64_t count);
double dot_f64(const float* a, const tensor::BF16* b, int64_t count);

// norm(h)_i = (h_i - mean) by, and what undoes it is h = norm(h) back + mean.
struct RowScale {
  double mean = 0;
  double by = 1;
  double back = 1;
};
RowScale row_scale(tap::FeatureNorm norm, const float* h, int64_t width);

}  // namespace rudder::cpu
