// Norms, activations and quantisation: one row in, one row out.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "rudder/testing/ops_conformance.h"

namespace rudder::testing {
namespace {

using tensor::DType;
using tensor::View;

constexpr ops::Activation kActivations[] = {
    ops::Activation::kSilu, ops::Activation::kGeluTanh,      ops::Activation::kGelu,
    ops::Activation::kRelu, ops::Activation::kClampedSwiglu, ops::Activation::kLimitedSilu};

std::string shape_text(int64_t rows, int64_t width) {
  return std::to_string(rows) + " x " + std::to_string(width);
}

TEST_P(OpsConformance, ResidualNorm) {
  for (int round = 0; round < 64; ++round) {
    const int64_t rows = pick(kConformanceRows);
    const int64_t hidden = pick_width();
    const bool has_delta = (round & 1) != 0;
    const bool has_norm = (round & 4) != 0;
    const bool has_out = (round & 8) != 0;
    const bool quantises = has_out && (round & 16) != 0 && writes_f8();
    const bool scales = (round & 32) != 0;
    ops::ResidualNormArgs args;
    args.x = random({rows, hidden});
    Matrix residual = read(args.x);
    if (has_delta) {
      args.delta = random({rows, hidden});
      if ((round & 2) != 0) args.delta_norm = random_norm(hidden);
      const Matrix delta = reference_norm(read(args.delta), read(args.delta_norm));
      if (scales) args.delta_scale = 0.22f;
      for (size_t i = 0; i < delta.values.size(); ++i) {
        residual.values[i] += double{args.delta_scale} * delta.values[i];
      }
    }
    if (scales) args.sum_scale = 0.75f;
    for (double& value : residual.values) value *= double{args.sum_scale};
    if (has_norm) args.norm = random_norm(hidden);
    if (quantises) {
      args.out = poisoned(DType::kF8E4M3, {rows, hidden});
      args.out_scale = poisoned(DType::kF32, {rows});
    } else if (has_out) {
      // The branch's buffer is often the next norm's output.
      args.out = round % 3 != 0 ? poisoned({rows, hidden}) : has_delta ? args.delta : args.x;
    }
    ops_.residual_norm(args);
    const std::string what = shape_text(rows, hidden) + ", round " + std::to_string(round);
    if (args.out.data != args.x.data) {
      expect_close(read(args.x), residual, 2e-6 * (1 + max_abs(residual)), what);
    }
    if (!has_out) continue;
    // The norm may read the sum before or after it is rounded to act.
    const Matrix expected = reference_norm(residual, read(args.norm));
    if (quantises) {
      expect_quantised(args.out, args.out_scale, expected, 4e-6, what);
    } else {
      const double rounding = 4e-6 + (has_delta || scales ? act_unit() : 0);
      expect_close(read(args.out), expected, rounding * (1 + max_abs(expected)), what);
    }
  }
}

// Both forms of a row at once are what each is alone.
TEST_P(OpsConformance, ResidualNormInBothForms) {
  if (!writes_f8()) GTEST_SKIP() << "it writes one form";
  for (int round = 0; round < 32; ++round) {
    const int64_t rows = pick(kConformanceRows);
    const int64_t hidden = pick_width();
    const std::string what = shape_text(rows, hidden) + ", round " + std::to_string(round);
    const View x = random({rows, hidden});
    const View delta = random({rows, hidden});
    ops::ResidualNormArgs asked;
    asked.norm = random_norm(hidden);
    if ((round & 2) != 0) asked.delta_norm = random_norm(hidden);
    if ((round & 4) != 0) asked.delta_scale = 0.22f;
    if ((round & 8) != 0) asked.sum_scale = 0.75f;
    const auto run = [&](bool quantises, bool in_act) {
      ops::ResidualNormArgs args = asked;
      args.x = copy(x);
      if ((round & 1) != 0) args.delta = copy(delta);
      const View act = in_act ? poisoned({rows, hidden}) : View{};
      args.out = quantises ? poisoned(DType::kF8E4M3, {rows, hidden}) : act;
      if (quantises) args.out_scale = poisoned(DType::kF32, {rows});
      if (quantises) args.out_act = act;
      ops_.residual_norm(args);
      return args;
    };
    const ops::ResidualNormArgs both = run(true, true);
    const ops::ResidualNormArgs quantised = run(true, false);
    expect_same_rows(both.out, quantised.out, what);
    expect_same_rows(both.out_scale, quantised.out_scale, what);
    expect_same_rows(both.x, quantised.x, what);
    expect_same_rows(both.out_act, run(false, true).out, what);
  }
}

TEST_P(OpsConformance, GatedAct) {
  for (const auto activation : kActivations) {
    for (const int64_t rows : kConformanceRows) {
      const int64_t width = pick_width();
      const View x = random({rows, 2 * width}, 4);
      const View out = poisoned({rows, width});
      ops_.gated_act({x, activation, out, {}});
      const Matrix input = read(x);
      const Matrix expected = reference_gated_act(input, activation);
      const Matrix got = read(out);
      double largest = 0;
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < width; ++i) {
          // Relative to the inputs: the tail of an activation may be flushed to 0.
          // Of a clamped one up is 1 larger.
          const double scale = std::abs(input.at(r, i)) * (std::abs(input.at(r, width + i)) + 1);
          largest = std::max(largest, scale);
          ASSERT_NEAR(got.at(r, i), expected.at(r, i),
                      6e-7 * scale + act_unit() * std::abs(expected.at(r, i)))
              << static_cast<int>(activation) << " of " << input.at(r, i);
        }
      }
      if (!writes_f8()) continue;
      const View small = poisoned(DType::kF8E4M3, {rows, width});
      const View scale = poisoned(DType::kF32, {rows});
      ops_.gated_act({x, activation, small, scale});
      expect_quantised(small, scale, expected, largest * 6e-7, shape_text(rows, width));
    }
  }
}

TEST_P(OpsConformance, ActivationsAtTheEdges) {
  const std::vector<float> edges = {0.0f, -0.0f, 1e-30f, -1e-30f, 20,   -20,
                                    88,   -88,   105,    -105,    1e4f, -1e4f};
  const int64_t width = wide(1);
  const auto edge_row = [&](float gate) {
    std::vector<float> row(static_cast<size_t>(2 * width), 1.0f);
    std::fill_n(row.begin(), width, gate);
    return device_.put(HostTensor(row, act_, {1, 2 * width}));
  };
  for (const auto activation : kActivations) {
    const View out = poisoned({1, width});
    for (const float edge : edges) {
      const View x = edge_row(edge);
      ops_.gated_act({x, activation, out, {}});
      const double expected = reference_gated_act(read(x), activation).at(0, 0);
      EXPECT_NEAR(read(out).at(0, 0), expected,
                  1e-6 * std::abs(double{edge}) + act_unit() * std::abs(expected))
          << static_cast<int>(activation) << " of " << edge;
    }
    ops_.gated_act({edge_row(std::numeric_limits<float>::quiet_NaN()), activation, out, {}});
    EXPECT_TRUE(std::isnan(read(out).at(0, 0))) << "NaN must not be hidden";
  }
}

TEST_P(OpsConformance, Quantise) {
  for (int round = 0; round < 40; ++round) {
    const int64_t rows = pick(kConformanceRows);
    const int64_t width = pick_width();
    // Rows of every magnitude; some of zeros.
    std::vector<float> values = random_values(rows * width);
    for (int64_t r = 0; r < rows; ++r) {
      const float scale = r % 5 == 3 ? 0.0f : std::ldexp(1.0f, static_cast<int>(between(-20, 20)));
      for (int64_t i = 0; i < width; ++i) values[static_cast<size_t>(r * width + i)] *= scale;
    }
    const View x = device_.put(HostTensor(values, act_, {rows, width}));
    const View out = poisoned(DType::kF8E4M3, {rows, width});
    const View scale = poisoned(DType::kF32, {rows});
    ops_.quantise({x, out, scale});
    expect_quantised(out, scale, read(x), 0, shape_text(rows, width));
  }
}

TEST_P(OpsConformance, QuantiseKeepsNaN) {
  const int64_t width = wide(16);
  std::vector<float> values(static_cast<size_t>(2 * width), 1.0f);
  values[3] = std::numeric_limits<float>::quiet_NaN();
  const View x = device_.put(HostTensor(values, act_, {2, width}));
  const View out = poisoned(DType::kF8E4M3, {2, width});
  const View scale = poisoned(DType::kF32, {2});
  ops_.quantise({x, out, scale});
  const Matrix got = read(out);
  EXPECT_TRUE(std::isnan(got.at(0, 3) * read(scale).at(0, 0)));
  for (int64_t i = 0; i < width; ++i) EXPECT_EQ(got.at(1, i), 448) << i;
}

}  // namespace
}  // namespace rudder::testing
