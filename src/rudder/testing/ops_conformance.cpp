#include "rudder/testing/ops_conformance.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace rudder::testing {

using tensor::DType;
using tensor::Shape;
using tensor::View;

View OpsConformance::random(Shape shape, double scale) {
  View view = ops_->allocate(DType::kF32, shape).value();
  std::normal_distribution<double> normal(0, scale);
  for (int64_t i = 0; i < shape.numel(); ++i) {
    view.as<float>()[i] = static_cast<float>(normal(random_));
  }
  return view;
}

View OpsConformance::poisoned(Shape shape) {
  View view = ops_->allocate(DType::kF32, shape).value();
  std::fill_n(view.as<float>(), shape.numel(), std::numeric_limits<float>::quiet_NaN());
  return view;
}

View OpsConformance::copy(const View& view) {
  return ops_->upload(view, view.dtype).value();
}

ops::NormSpec OpsConformance::random_norm(int64_t width) {
  return ops::NormSpec{random({width}), 1e-5f};
}

OpsConformance::Linear OpsConformance::random_linear(std::span<const int64_t> outs, int64_t in,
                                                     bool bias, DType dtype) {
  Linear linear;
  linear.reference = Matrix(0, in);
  std::vector<ops::LinearPart> parts;
  for (const int64_t out : outs) {
    ops::LinearPart part;
    part.weight = ops_->upload(random({out, in}), dtype).value();
    if (bias) part.bias = ops_->upload(random({out}), dtype).value();
    const Matrix stored = rounded(to_matrix(part.weight), ops_->linear_dtype());
    linear.reference.rows += out;
    linear.reference.values.insert(linear.reference.values.end(), stored.values.begin(),
                                   stored.values.end());
    if (bias) {
      const Matrix added = to_matrix(part.bias);
      linear.bias.values.insert(linear.bias.values.end(), added.values.begin(), added.values.end());
    }
    parts.push_back(part);
  }
  linear.bias.rows = 1;
  linear.bias.cols = static_cast<int64_t>(linear.bias.values.size());
  linear.weight = ops_->make_linear(parts).value();
  return linear;
}

int64_t OpsConformance::pick(std::span<const int64_t> choices) {
  return choices[static_cast<size_t>(between(0, static_cast<int64_t>(choices.size()) - 1))];
}

int64_t OpsConformance::between(int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random_);
}

double OpsConformance::sum_tolerance(int64_t in, double magnitude) {
  return (4 + std::sqrt(static_cast<double>(in))) * std::ldexp(1.0, -24) * magnitude + 1e-30;
}

void expect_same_bits(const View& a, const View& b, const std::string& what) {
  ASSERT_EQ(a.shape, b.shape);
  if (std::memcmp(a.data, b.data, a.bytes()) == 0) return;
  for (int64_t i = 0; i < a.shape.numel(); ++i) {
    if (std::memcmp(a.as<float>() + i, b.as<float>() + i, sizeof(float)) == 0) continue;
    FAIL() << what << ": element " << i << " is " << a.as<float>()[i] << " and "
           << b.as<float>()[i];
  }
}

namespace {

constexpr int64_t kRows[] = {0, 1, 2, 3, 7, 15, 16, 17, 31, 33, 40, 70};
constexpr int64_t kWidths[] = {1, 2, 15, 16, 17, 31, 32, 33, 64, 96, 127, 256, 301};

TEST_P(OpsConformance, Linear) {
  for (int round = 0; round < 40; ++round) {
    const int64_t rows = pick(kRows);
    const int64_t in = pick(kWidths);
    std::vector<int64_t> outs;
    for (int64_t parts = between(1, 3); parts > 0; --parts) outs.push_back(pick(kWidths));
    constexpr DType kStored[] = {DType::kF32, DType::kF16, DType::kBF16};
    const Linear linear = random_linear(outs, in, round % 2 == 0, kStored[round % 3]);
    const View x = random({rows, in});
    const View out = poisoned({rows, linear.weight.out});
    ops_->linear({x, {}, &linear.weight, out});

    const Matrix input = rounded(to_matrix(x), product_dtype());
    const Matrix expected = reference_linear(input, linear.reference, linear.bias);
    const Matrix got = to_matrix(out);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t n = 0; n < got.cols; ++n) {
        double magnitude = std::abs(expected.at(r, n));
        for (int64_t k = 0; k < in; ++k) {
          magnitude += std::abs(input.at(r, k) * linear.reference.at(n, k));
        }
        ASSERT_NEAR(got.at(r, n), expected.at(r, n), sum_tolerance(in, magnitude))
            << rows << " rows, " << in << " to " << got.cols << ", at " << r << ", " << n;
      }
    }
  }
}

TEST_P(OpsConformance, LinearRefusesWeightsItCannotStore) {
  View weight = ops_->allocate(DType::kI32, {4, 4}).value();
  const ops::LinearPart part{weight, {}};
  EXPECT_FALSE(ops_->make_linear({&part, 1}).has_value());
}

TEST_P(OpsConformance, LogitsWithSoftCap) {
  for (const float cap : {0.0f, 30.0f}) {
    const int64_t outs[] = {307};
    const Linear head = random_linear(outs, 96, false);
    const View x = random({5, 96}, 3);
    const View out = poisoned({5, 307});
    ops_->logits({x, {}, &head.weight, cap, out});
    Matrix expected =
        reference_linear(rounded(to_matrix(x), product_dtype()), head.reference, head.bias);
    for (double& value : expected.values) value = reference_soft_cap(value, cap);
    EXPECT_LE(max_difference(to_matrix(out), expected), 2e-6 * 96 * 3) << cap;
  }
}

TEST_P(OpsConformance, EmbedFromATableAndFromATiedHead) {
  const int64_t vocab = 37;
  for (const int64_t hidden : {1, 16, 33, 64}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const View rows = random({vocab, hidden});
      const View table = ops_->upload(rows, dtype).value();
      const ops::LinearPart part{table, {}};
      const ops::LinearWeight head = ops_->make_linear({&part, 1}).value();
      const int32_t ids[] = {36, 0, 5, 5, 17};
      const View out = poisoned({5, hidden});
      const View tied = poisoned({5, hidden});
      ops_->embed({table, nullptr, tensor::host_view(ids), 3.0f, out});
      ops_->embed({{}, &head, tensor::host_view(ids), 3.0f, tied});
      const Matrix expected = to_matrix(table);
      const Matrix stored = rounded(expected, ops_->linear_dtype());
      for (int64_t r = 0; r < 5; ++r) {
        for (int64_t i = 0; i < hidden; ++i) {
          EXPECT_EQ(to_matrix(out).at(r, i),
                    double{static_cast<float>(expected.at(ids[r], i)) * 3.0f});
          EXPECT_EQ(to_matrix(tied).at(r, i),
                    double{static_cast<float>(stored.at(ids[r], i)) * 3.0f});
        }
      }
    }
  }
}

TEST_P(OpsConformance, ResidualNorm) {
  for (int round = 0; round < 64; ++round) {
    const int64_t rows = pick(kRows);
    const int64_t hidden = pick(kWidths);
    const bool has_delta = (round & 1) != 0;
    const bool has_norm = (round & 4) != 0;
    const bool has_out = (round & 8) != 0;
    ops::ResidualNormArgs args;
    args.x = random({rows, hidden});
    Matrix residual = to_matrix(args.x);
    if (has_delta) {
      args.delta = random({rows, hidden});
      if ((round & 2) != 0) args.delta_norm = random_norm(hidden);
      const Matrix delta = reference_rms_norm(
          to_matrix(args.delta), to_matrix(args.delta_norm.weight), double{args.delta_norm.eps});
      for (size_t i = 0; i < delta.values.size(); ++i) residual.values[i] += delta.values[i];
    }
    if (has_norm) args.norm = random_norm(hidden);
    // The branch's buffer is often the next norm's output.
    if (has_out) args.out = has_delta && round % 3 == 0 ? args.delta : poisoned({rows, hidden});
    ops_->residual_norm(args);
    EXPECT_LE(max_difference(to_matrix(args.x), residual), 2e-6 * (1 + max_abs(residual)));
    if (!has_out) continue;
    const Matrix expected = reference_rms_norm(residual, to_matrix(args.norm.weight), 1e-5);
    EXPECT_LE(max_difference(to_matrix(args.out), expected), 4e-6 * (1 + max_abs(expected)))
        << rows << " x " << hidden << ", round " << round;
  }
}

TEST_P(OpsConformance, GatedAct) {
  for (const auto activation :
       {ops::Activation::kSilu, ops::Activation::kGeluTanh, ops::Activation::kGelu}) {
    for (const int64_t rows : kRows) {
      const int64_t width = pick(kWidths);
      const View x = random({rows, 2 * width}, 4);
      const View out = poisoned({rows, width});
      ops_->gated_act({x, activation, out, {}});
      const Matrix input = to_matrix(x);
      const Matrix expected = reference_gated_act(input, activation);
      const Matrix got = to_matrix(out);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < width; ++i) {
          // Relative to the inputs: the tail of an activation may be flushed to 0.
          const double scale = std::abs(input.at(r, i) * input.at(r, width + i));
          ASSERT_NEAR(got.at(r, i), expected.at(r, i), 6e-7 * scale)
              << static_cast<int>(activation) << " of " << input.at(r, i);
        }
      }
    }
  }
}

TEST_P(OpsConformance, ActivationsAtTheEdges) {
  constexpr float kEdges[] = {0.0f, -0.0f, 1e-30f, -1e-30f, 20,   -20,
                              88,   -88,   105,    -105,    1e4f, -1e4f};
  for (const auto activation :
       {ops::Activation::kSilu, ops::Activation::kGeluTanh, ops::Activation::kGelu}) {
    for (const float edge : kEdges) {
      const View x = random({1, 2});
      x.as<float>()[0] = edge;
      x.as<float>()[1] = 1;
      const View out = poisoned({1, 1});
      ops_->gated_act({x, activation, out, {}});
      const double expected = reference_gated_act(to_matrix(x), activation).at(0, 0);
      EXPECT_NEAR(double{*out.as<float>()}, expected, 1e-6 * std::abs(double{edge}))
          << static_cast<int>(activation) << " of " << edge;
    }
    const View x = random({1, 2});
    x.as<float>()[0] = std::numeric_limits<float>::quiet_NaN();
    const View out = random({1, 1});
    ops_->gated_act({x, activation, out, {}});
    EXPECT_TRUE(std::isnan(*out.as<float>())) << "NaN must not be hidden";
  }
}

TEST_P(OpsConformance, GatherRows) {
  const View x = random({9, 33});
  const int32_t rows[] = {8, 0, 3, 3};
  const View out = poisoned({4, 33});
  ops_->gather_rows({x, tensor::host_view(rows), out});
  for (int64_t r = 0; r < 4; ++r) {
    expect_same_bits(out.rows(r, 1), x.rows(rows[r], 1), "row " + std::to_string(r));
  }
}

}  // namespace
}  // namespace rudder::testing
