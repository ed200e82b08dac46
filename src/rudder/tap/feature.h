// Features of a dictionary (a sparse autoencoder) as host and device read them: how the row is
// normalised, and how a clamp changes a feature's value. Plain data; this header is C++17, because
// nvcc reads it too.
#pragma once

#include <cstdint>

namespace rudder::tap {

// norm(x) of a row of n elements; x = norm(x) c + mean.
enum class FeatureNorm : int16_t {
  kNone,          // x; c = 1
  kConstantNorm,  // x sqrt(n) / |x|; c = |x| / sqrt(n); a row of zeros stays one, with c = 0
  kLayerNorm,     // (x - mean) / (d + kLayerNormEpsilon); c = d = sqrt(sum (x - mean)^2 / (n - 1))
};
inline constexpr double kLayerNormEpsilon = 1e-5;

// The value that a clamp gives to a feature of value f.
enum class FeatureEdit : int16_t {
  kSet,       // v
  kAdd,       // f + v
  kMultiply,  // f v
  kMin,       // max(f, v): at least v
  kMax,       // min(f, v): at most v
};

}  // namespace rudder::tap
