// Sums of products of float32 in double, one after the other: the arithmetic of the plain ops. Four
// rows go side by side, since none of their sums waits for another's, and numbers come four at a
// time. Whatever goes together, a sum has the same bits.
#pragma once

#include <array>
#include <cstdint>

namespace rudder::cpu {

namespace double_sums {

using Floats = float __attribute__((vector_size(16), aligned(4), may_alias));
using Doubles = double __attribute__((vector_size(32), aligned(8), may_alias));
constexpr int64_t kLanes = 4;

struct Four {
  Doubles v;
};
inline Four load(const float* from) {
  return {__builtin_convertvector(*reinterpret_cast<const Floats*>(from), Doubles)};
}
// A product of two floats is exact in double.
inline void add(double& sum, const Four& a, const float* b) {
  const Four products = {a.v * load(b).v};
  sum += products.v[0];
  sum += products.v[1];
  sum += products.v[2];
  sum += products.v[3];
}

}  // namespace double_sums

// a . b
inline double sum_of_products(const float* a, const float* b, int64_t count) {
  namespace lanes = double_sums;
  double sum = 0;
  int64_t i = 0;
  for (; i + lanes::kLanes <= count; i += lanes::kLanes) lanes::add(sum, lanes::load(a + i), b + i);
  for (; i < count; ++i) sum += double{a[i]} * b[i];
  return sum;
}

using FourRows = std::array<const float*, 4>;

// a . each of the rows
inline std::array<double, 4> sums_of_products(const float* a, const FourRows& rows, int64_t count) {
  namespace lanes = double_sums;
  const auto [b, c, d, e] = rows;
  double of_b = 0;
  double of_c = 0;
  double of_d = 0;
  double of_e = 0;
  int64_t i = 0;
  for (; i + lanes::kLanes <= count; i += lanes::kLanes) {
    const lanes::Four four = lanes::load(a + i);
    lanes::add(of_b, four, b + i);
    lanes::add(of_c, four, c + i);
    lanes::add(of_d, four, d + i);
    lanes::add(of_e, four, e + i);
  }
  for (; i < count; ++i) {
    const double one = a[i];
    of_b += one * b[i];
    of_c += one * c[i];
    of_d += one * d[i];
    of_e += one * e[i];
  }
  return {of_b, of_c, of_d, of_e};
}

// sums += weight * row
inline void add_weighted(double* sums, double weight, const float* row, int64_t count) {
  namespace lanes = double_sums;
  int64_t i = 0;
  for (; i + lanes::kLanes <= count; i += lanes::kLanes) {
    *reinterpret_cast<lanes::Doubles*>(sums + i) += weight * lanes::load(row + i).v;
  }
  for (; i < count; ++i) sums[i] += weight * row[i];
}

}  // namespace rudder::cpu
