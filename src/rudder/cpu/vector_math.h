// Functions on sixteen lanes: exp, and the functions of attention and of the activations that are
// built from it. Included by kernels_<isa>.cpp through simd.h. Each returns NaN for NaN.
#pragma once

#include "rudder/cpu/simd.h"

namespace rudder::cpu::RUDDER_CPU_ISA {

// x = n ln 2 + r with n whole and |r| <= ln(2) / 2, for |x| < 2^20.
struct Reduced {
  Vec n, r;
};
inline Reduced reduce(Vec x) {
  const Vec shift = set(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  const Vec n = fma(x, set(1.44269504f), shift) - shift;
  // ln 2 in two parts, the first of so few bits that n times it is exact.
  const Vec r = fma(n, set(-0.693359375f), x);
  return {n, fma(n, set(2.12194440e-4f), r)};
}

// (e^r - 1 - r) / r^2 by its Taylor series; e^r is then within 6e-9 for |r| <= ln(2) / 2.
inline Vec exp_tail(Vec r) {
  Vec p = set(1.0f / 5040);
  p = fma(p, r, set(1.0f / 720));
  p = fma(p, r, set(1.0f / 120));
  p = fma(p, r, set(1.0f / 24));
  p = fma(p, r, set(1.0f / 6));
  return fma(p, r, set(0.5f));
}

// Keeps x within [low, high]; the order of the operands lets a NaN through.
inline Vec clamp(Vec x, float low, float high) {
  return min(set(high), max(set(low), x));
}

// e^x within 2 ulp; exactly 1 at 0 and 0 at -inf, which attention's exactness rests on.
inline Vec exp(Vec x) {
  const Reduced parts = reduce(clamp(x, -104.0f, 89.0f));  // beyond these the result is 0 or inf
  const Vec p = fma(exp_tail(parts.r), parts.r, set(1.0f));
  return times_power_of_two(fma(p, parts.r, set(1.0f)), parts.n);
}

// tanh(x) = m / (m + 2) with m = e^2x - 1 = 2^n (e^r - 1) + (2^n - 1): relative error below 4e-7,
// also near 0, where e^2x alone would lose x.
inline Vec tanh(Vec x) {
  const Reduced parts = reduce(clamp(x + x, -20.0f, 20.0f));  // beyond these it rounds to -1 or 1
  const Vec power = times_power_of_two(set(1.0f), parts.n);
  const Vec e = fma(exp_tail(parts.r) * parts.r, parts.r, parts.r);
  const Vec m = fma(e, power, power - set(1.0f));
  return m / (m + set(2.0f));
}

// 1 - erf(x): the Chebyshev fit of Press et al., Numerical Recipes, 6.2: relative error below
// 1.2e-7 before rounding, everywhere.
inline Vec erfc(Vec x) {
  const Vec zero = set(0.0f);
  const Vec z = max(zero - x, x);
  const Vec t = set(1.0f) / fma(z, set(0.5f), set(1.0f));
  Vec p = set(0.17087277f);
  p = fma(p, t, set(-0.82215223f));
  p = fma(p, t, set(1.48851587f));
  p = fma(p, t, set(-1.13520398f));
  p = fma(p, t, set(0.27886807f));
  p = fma(p, t, set(-0.18628806f));
  p = fma(p, t, set(0.09678418f));
  p = fma(p, t, set(0.37409196f));
  p = fma(p, t, set(1.00002368f));
  p = fma(p, t, set(-1.26551223f));
  const Vec tail = t * exp(fma(zero - z, z, p));
  return where_less(x, zero, set(2.0f) - tail, tail);
}

inline Vec silu(Vec x) {
  return x / (set(1.0f) + exp(set(0.0f) - x));
}

// 0.5 x (1 + tanh(u)) = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
inline Vec gelu_tanh(Vec x) {
  const Vec u = x * fma(x * x, set(0.044715f), set(1.0f));
  return x / (set(1.0f) + exp(u * set(-1.5957691216f)));
}

inline Vec gelu(Vec x) {
  return x * set(0.5f) * erfc(x * set(-0.70710678f));
}

}  // namespace rudder::cpu::RUDDER_CPU_ISA
