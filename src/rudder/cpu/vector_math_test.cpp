// The claims of vector_math.h, in the baseline's arithmetic (no fused multiply-add: the worst
// case). Through the tables, on every instruction set, the same functions are in the conformance
// suite.
#define RUDDER_CPU_ISA vector_math_test
#include "rudder/cpu/vector_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace rudder::cpu::vector_math_test {
namespace {

template <typename F>
float at(F f, float x) {
  float lanes[kLanes];
  store(lanes, f(set(x)));
  return lanes[kLanes - 1];
}

double ulps(float got, double expected) {
  const auto nearest = static_cast<float>(expected);
  const double ulp = std::nextafter(std::abs(nearest), INFINITY) - std::abs(nearest);
  return std::abs(double{got} - expected) / ulp;
}

TEST(VectorMath, ExpIsWithinTwoUlps) {
  double worst = 0;
  for (float x = -87; x < 88.7f; x += 0.00137f) {
    worst = std::max(worst, ulps(at([](Vec v) { return exp(v); }, x), std::exp(double{x})));
  }
  EXPECT_LE(worst, 2);
}

TEST(VectorMath, ExpIsExactWhereAttentionNeedsIt) {
  const auto f = [](Vec v) { return exp(v); };
  EXPECT_EQ(at(f, 0.0f), 1.0f);
  EXPECT_EQ(at(f, -INFINITY), 0.0f);
  EXPECT_EQ(at(f, -1000.0f), 0.0f);
  EXPECT_EQ(at(f, INFINITY), INFINITY);
  EXPECT_TRUE(std::isnan(at(f, std::numeric_limits<float>::quiet_NaN())));
}

TEST(VectorMath, TanhIsRelativelyAccurateNearZeroToo) {
  const auto f = [](Vec v) { return tanh(v); };
  for (double x = 1e-6; x < 30; x *= 1.01) {
    for (const double signed_x : {x, -x}) {
      const auto argument = static_cast<float>(signed_x);
      const double expected = std::tanh(double{argument});
      EXPECT_NEAR(at(f, argument), expected, 4e-7 * std::abs(expected)) << argument;
    }
  }
  EXPECT_EQ(at(f, 0.0f), 0.0f);
  EXPECT_EQ(at(f, INFINITY), 1.0f);
  EXPECT_EQ(at(f, -INFINITY), -1.0f);
  EXPECT_TRUE(std::isnan(at(f, std::numeric_limits<float>::quiet_NaN())));
}

TEST(VectorMath, ErfcIsRelativelyAccurateInTheTail) {
  for (float x = -5; x < 8; x += 0.0173f) {
    const double expected = std::erfc(double{x});
    // The exponent -x^2 is rounded to fp32, which the exponential magnifies.
    const double tolerance = (4e-7 + 1.2e-7 * double{x} * double{x}) * expected;
    EXPECT_NEAR(at([](Vec v) { return erfc(v); }, x), expected, tolerance) << x;
  }
}

TEST(VectorMath, SumsHaveOneOrder) {
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = std::ldexp(1.0f, i * 2 - 15);
  const Vec x = load(lanes);
  EXPECT_EQ(sum(x), 43690.6640625f + 0.0f);
  EXPECT_EQ(highest(x), lanes[kLanes - 1]);
}

}  // namespace
}  // namespace rudder::cpu::vector_math_test
