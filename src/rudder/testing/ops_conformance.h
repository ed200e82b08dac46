// The conformance suite: every macro-op of a backend against the formulas in double precision
// (reference_ops.h), over fuzzed shapes and poisoned outputs, and rows against themselves in other
// company, bit for bit. A backend joins by INSTANTIATE_TEST_SUITE_P(..., OpsConformance, ...) in a
// test file of its own (ops_conformance_cpu_test.cpp). The backend's memory must be host-readable.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "rudder/ops/ops.h"
#include "rudder/testing/reference_ops.h"

namespace rudder::testing {

struct Backend {
  std::string name;

  std::function<std::unique_ptr<ops::Ops>(int num_threads)> make;
};
inline void PrintTo(const Backend& backend, std::ostream* out) {
  *out << backend.name;
}

class OpsConformance : public ::testing::TestWithParam<Backend> {
 protected:
  OpsConformance() : ops_(GetParam().make(2)), random_(1) {}

  // Tensors of the backend, f32 unless said; random values are normal times `scale`.
  tensor::View random(tensor::Shape shape, double scale = 1);
  tensor::View poisoned(tensor::Shape shape);  // NaN
  tensor::View copy(const tensor::View& view);
  ops::NormSpec random_norm(int64_t width);
  // A weight of random parts, and what it should multiply by: rounded as the backend stores it.
  struct Linear {
    ops::LinearWeight weight;
    Matrix reference;
    Matrix bias;
  };
  Linear random_linear(std::span<const int64_t> outs, int64_t in, bool bias,
                       tensor::DType dtype = tensor::DType::kF32);
  int64_t pick(std::span<const int64_t> choices);
  int64_t between(int64_t low, int64_t high);

  // What products multiply: bf16 when the backend stores linears in bf16, else f32.
  tensor::DType product_dtype() const { return ops_->linear_dtype(); }
  // Bound on |sum in fp32 - sum| of x . w over `in` terms that sum to `magnitude` in absolute
  // value: the usual sqrt(n) growth of rounding with a wide margin.
  static double sum_tolerance(int64_t in, double magnitude);

  std::unique_ptr<ops::Ops> ops_;
  std::mt19937_64 random_;
};

// Bytes of two tensors are the same.
void expect_same_bits(const tensor::View& a, const tensor::View& b, const std::string& what);

}  // namespace rudder::testing
