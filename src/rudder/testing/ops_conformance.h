// The conformance suite: compares every macro-op of a backend with the formulas in double precision
// (reference_ops.h), over fuzzed shapes and poisoned outputs. It also compares rows with the same
// rows in other calls, bit for bit. A backend joins with INSTANTIATE_TEST_SUITE_P(...,
// OpsConformance, ...), and with OpsAttention in the same way, in a test file of its own
// (ops_conformance_cpu_test.cpp). The suite works for any memory and precision: it reads inputs
// back as the backend has them, and its tolerances follow the backend's dtypes.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "rudder/ops/ops.h"
#include "rudder/testing/device_tensors.h"
#include "rudder/testing/reference_ops.h"

namespace rudder::testing {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Backend {
  std::string name;
  std::function<std::unique_ptr<ops::Ops>(int num_threads)> make;
  // What the backend is made for; models have no other shapes.
  int64_t width_unit = 1;  // widths of rows are multiples of it
  std::vector<int64_t> head_dims = {16, 32, 64, 80, 96, 128, 256, 512, 8, 20, 272};
  std::vector<int64_t> block_sizes = {16, 16, 32, 4};
  // Norms and activations can write F8E4M3, although no linear here may ask for it.
  bool writes_f8 = false;
  // Rows are the same bits in any company; else they are as near as the dtype's rounding.
  bool rows_are_exact = true;
  // Over a cache of F8E4M3 attention may round a query to that (round_query_row.h): the row of a
  // head of a token, all of it or none of it.
  bool rounds_queries = false;
  // It is fast enough for dictionaries of the sizes that are published.
  bool takes_large_shapes = false;
};
inline void PrintTo(const Backend& backend, std::ostream* out) {
  *out << backend.name;
}

class OpsConformance : public ::testing::TestWithParam<Backend> {
 protected:
  OpsConformance()
      : device_(GetParam().make(2)), ops_(device_.ops()), act_(ops_.act_dtype()), random_(1) {}

  // Tensors of the backend, of its act dtype; random values are normal times `scale`.
  tensor::View random(tensor::Shape shape, double scale = 1);
  tensor::View poisoned(tensor::Shape shape) { return poisoned(act_, shape); }
  tensor::View poisoned(tensor::DType dtype, tensor::Shape shape);  // NaN: 0xff in every byte
  tensor::View copy(const tensor::View& view) { return device_.put(device_.get(view)); }
  std::vector<float> random_values(int64_t count, double scale = 1);
  Matrix read(const tensor::View& view) { return device_.matrix(view); }
  ReferenceNorm read(const ops::NormSpec& norm);
  ops::NormSpec random_norm(int64_t width);  // of a kind that the backend has

  // A weight of random parts, and what it multiplies by: rounded as the backend stores it. Parts
  // of a backend that stores F8E4M3 are values that it has, so that the rounding is the identity.
  struct Linear {
    ops::LinearWeight weight;  // nothing packed: the backend has no such shape
    Matrix reference;
    Matrix bias;
  };
  Linear random_linear(std::span<const int64_t> outs, int64_t in, bool bias,
                       tensor::DType dtype = tensor::DType::kF32);
  // x as the weight takes it, and as it is then.
  struct Operand {
    tensor::View x;
    tensor::View scale;
    Matrix exact;
  };
  static Matrix rounded_to_i8(Matrix x);
  Operand operand_of(const tensor::View& x, const ops::LinearWeight& weight);
  // Rounds each row of `width` values to F8E4M3 times a power of two, its largest to 448 times
  // that.
  static void put_on_fp8_grid(std::vector<float>& values, int64_t width);
  // Largest |product - reference| at one output: of `in` terms that sum to `magnitude` in absolute
  // value, stored as `out`; the largest value that is rounded to `out` on the way is `largest`.
  double product_tolerance(int64_t in, double magnitude, double largest, tensor::DType out) const;

  int64_t pick(std::span<const int64_t> choices);
  int64_t pick_width();
  int64_t between(int64_t low, int64_t high);
  // Least multiple of the backend's width unit that is not less.
  int64_t wide(int64_t width) const;

  // What one rounding to the dtype can change, relative to the value: none for f32, whose
  // tolerances are each test's own.
  static double unit_of(tensor::DType dtype);
  double act_unit() const { return unit_of(act_); }
  // |got - expected| <= tolerance + act_unit() * |expected| everywhere.
  void expect_close(const Matrix& got, const Matrix& expected, double tolerance,
                    const std::string& what);
  // Of the same shape, bit for bit, or closely where the backend does not promise more.
  void expect_same_rows(const tensor::View& a, const tensor::View& b, const std::string& what);
  // What the backend makes of wide weights: F8E4M3 with a scale a row, or this dtype.
  bool stores_fp8() const { return ops_.stored_format({}) == ops::kFp8Rows; }
  tensor::DType wide_dtype() const {
    return ops::stored_parts(ops_.stored_format({}).value(), 1, 1).codes.dtype;
  }
  bool writes_f8() const { return GetParam().writes_f8 || stores_fp8(); }
  // out * scale against `expected`, which is exact to `tolerance`, within the rounding of F8E4M3
  // and of act before it.
  void expect_quantised(const tensor::View& out, const tensor::View& scale, const Matrix& expected,
                        double tolerance, const std::string& what);

  Device device_;
  ops::Ops& ops_;
  const tensor::DType act_;
  std::mt19937_64 random_;
};

// How many rows tests take, and how wide they are before wide().
inline constexpr int64_t kConformanceRows[] = {0, 1, 2, 3, 7, 15, 16, 17, 31, 33, 40, 70};

}  // namespace rudder::testing
