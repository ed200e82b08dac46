#include "rudder/cpu/row_scale.h"

#include <cmath>

namespace rudder::cpu {
namespace {

float number(float value) {
  return value;
}
float number(tensor::BF16 value) {
  return tensor::to_float(value);
}

// Several sums at once.
template <typename T>
double wide_dot(const float* a, const T* b, int64_t count) {
  constexpr int64_t kSums = 8;
  double sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (int64_t j = 0; j < kSums; ++j) sums[j] += double{a[i + j]} * double{number(b[i + j])};
  }
  for (; i < count; ++i) sums[i % kSums] += double{a[i]} * double{number(b[i])};
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

}  // namespace

double dot_f64(const float* a, const float* b, int64_t count) {
  return wide_dot(a, b, count);
}
double dot_f64(const float* a, const tensor::BF16* b, int64_t count) {
  return wide_dot(a, b, count);
}

RowScale row_scale(tap::FeatureNorm norm, const float* h, int64_t width) {
  const auto count = static_cast<double>(width);
  RowScale scale;
  if (norm == tap::FeatureNorm::kConstantNorm) {
    scale.back = std::sqrt(dot_f64(h, h, width) / count);
    scale.by = scale.back > 0 ? 1 / scale.back : 0;
  } else if (norm == tap::FeatureNorm::kLayerNorm) {
    double sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += double{h[i]};
    scale.mean = sum / count;
    double squares = 0;
    for (int64_t i = 0; i < width; ++i) {
      squares += (double{h[i]} - scale.mean) * (double{h[i]} - scale.mean);
    }
    scale.back = width > 1 ? std::sqrt(squares / (count - 1)) : 0;
    scale.by = 1 / (scale.back + tap::kLayerNormEpsilon);
  }
  return scale;
}

}  // namespace rudder::cpu
