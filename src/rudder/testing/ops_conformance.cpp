#include "rudder/testing/ops_conformance.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace rudder::testing {

using tensor::DType;
using tensor::Shape;
using tensor::View;

std::vector<float> OpsConformance::random_values(int64_t count, double scale) {
  std::normal_distribution<double> normal(0, scale);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(normal(random_));
  return values;
}

View OpsConformance::random(Shape shape, double scale) {
  return device_.put(HostTensor(random_values(shape.numel(), scale), act_, shape));
}

View OpsConformance::poisoned(DType dtype, Shape shape) {
  HostTensor host(dtype, shape);
  std::fill(host.values<uint8_t>().begin(), host.values<uint8_t>().end(), uint8_t{0xff});
  return device_.put(host);
}

ops::NormSpec OpsConformance::random_norm(int64_t width) {
  const auto draw = [&] {
    return device_.put(HostTensor(random_values(width), DType::kF32, {width}));
  };
  ops::NormSpec norm{.weight = draw(), .eps = 1e-5f};
  if (between(0, 3) == 0) norm.alpha = draw();
  return norm;
}

ReferenceNorm OpsConformance::read(const ops::NormSpec& norm) {
  return {.weight = read(norm.weight), .alpha = read(norm.alpha), .eps = double{norm.eps}};
}

OpsConformance::Linear OpsConformance::random_linear(std::span<const int64_t> outs, int64_t in,
                                                     bool bias, DType dtype) {
  Linear linear;
  linear.reference = Matrix(0, in);
  std::vector<HostTensor> memory;
  memory.reserve(2 * outs.size());
  std::vector<ops::LinearPart> parts;
  const DType stored_as = stores_fp8() ? DType::kF32 : wide_dtype();
  for (const int64_t out : outs) {
    std::vector<float> values = random_values(out * in);
    if (stores_fp8()) put_on_fp8_grid(values, in);
    ops::LinearPart part =
        ops::wide_part(memory.emplace_back(values, dtype, Shape{out, in}).view());
    if (bias) {
      // A backend may keep biases as bf16: that is no error of the product.
      const HostTensor values(random_values(out), DType::kBF16, Shape{out});
      const Matrix exact = to_matrix(values.view());
      const std::vector<float> representable(exact.values.begin(), exact.values.end());
      part.bias = memory.emplace_back(representable, dtype, Shape{out}).view();
    }
    const Matrix stored = rounded(to_matrix(part.codes), stored_as);
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
  auto made = ops_.make_linear(parts);
  if (made) {
    linear.weight = *made;
  } else {
    EXPECT_EQ(made.error().code, ErrorCode::kUnsupported) << made.error().to_string();
    const int64_t width = linear.reference.rows;
    EXPECT_FALSE(in % 64 == 0 && width % 64 == 0) << "every backend has " << in << " x " << width;
  }
  return linear;
}

// By the formula of ops::kI8InputGroup.
Matrix OpsConformance::rounded_to_i8(Matrix x) {
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t begin = 0; begin < x.cols; begin += ops::kI8InputGroup) {
      const int64_t end = std::min(begin + ops::kI8InputGroup, x.cols);
      float most = 0;
      for (int64_t c = begin; c < end; ++c) {
        most = std::max(most, static_cast<float>(std::abs(x.at(r, c))));
      }
      const float by = most < ops::kLeastI8Input ? 0 : 127.0f / most;
      for (int64_t c = begin; c < end; ++c) {
        const float code = std::nearbyint(static_cast<float>(x.at(r, c)) * by);
        x.at(r, c) = double{most / 127.0f} * double{code};
      }
    }
  }
  return x;
}

OpsConformance::Operand OpsConformance::operand_of(const View& x, const ops::LinearWeight& weight) {
  if (weight.rounds_x) return {x, {}, rounded_to_i8(read(x))};
  if (weight.input == ops::InputForm::kAct) {
    return {x, {}, rounded(read(x), stores_fp8() ? act_ : wide_dtype())};
  }
  Operand operand{poisoned(DType::kF8E4M3, x.shape), poisoned(DType::kF32, {x.shape[0]}), {}};
  ops_.quantise({x, operand.x, operand.scale});
  operand.exact = read(operand.x);
  const Matrix scale = read(operand.scale);
  for (int64_t r = 0; r < operand.exact.rows; ++r) {
    for (int64_t c = 0; c < operand.exact.cols; ++c) operand.exact.at(r, c) *= scale.at(0, r);
  }
  return operand;
}

double OpsConformance::product_tolerance(int64_t in, double magnitude, double largest,
                                         DType out) const {
  // Of fp32 sums: the usual sqrt(n) growth of rounding with a wide margin.
  double unit = (4 + std::sqrt(static_cast<double>(in))) * std::ldexp(1.0, -24);
  if (!stores_fp8()) {
    return unit * magnitude + unit_of(out) * std::abs(largest) + 1e-30;
  }
  // A GPU's fp8 sums keep 14 bits, and are rounded before and after they are scaled.
  unit += std::ldexp(1.0, -12);
  return unit * magnitude + 2 * unit_of(out) * std::abs(largest) + 1e-30;
}

// What a backend stores of these weights as F8E4M3 is then what they are, whatever it does with
// ties: a test of products compares with the product of the stored values. How weights are rounded
// is a test of its own (EmbedFromATableAndFromATiedHead).
void OpsConformance::put_on_fp8_grid(std::vector<float>& values, int64_t width) {
  constexpr float kMost = 448;
  for (auto row = values.begin(); row != values.end(); row += width) {
    const auto largest = std::max_element(
        row, row + width, [](float a, float b) { return std::abs(a) < std::abs(b); });
    if (*largest == 0) continue;
    const auto exponent = static_cast<int>(std::ceil(std::log2(std::abs(*largest) / kMost)));
    const float scale = std::ldexp(1.0f, exponent);
    *largest = *largest < 0 ? -kMost * scale : kMost * scale;
    for (auto value = row; value != row + width; ++value) {
      *value = tensor::to_float(tensor::to_f8e4m3(*value / scale)) * scale;
    }
  }
}

int64_t OpsConformance::pick(std::span<const int64_t> choices) {
  return choices[static_cast<size_t>(between(0, static_cast<int64_t>(choices.size()) - 1))];
}

int64_t OpsConformance::pick_width() {
  constexpr int64_t kWidths[] = {1, 2, 15, 16, 17, 31, 32, 33, 64, 96, 127, 256, 301};
  return wide(pick(kWidths));
}

int64_t OpsConformance::between(int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random_);
}

int64_t OpsConformance::wide(int64_t width) const {
  const int64_t unit = GetParam().width_unit;
  return (width + unit - 1) / unit * unit;
}

double OpsConformance::unit_of(DType dtype) {
  return dtype == DType::kBF16 ? std::ldexp(1.0, -8) : 0;
}

void OpsConformance::expect_close(const Matrix& got, const Matrix& expected, double tolerance,
                                  const std::string& what) {
  ASSERT_EQ(got.rows, expected.rows) << what;
  ASSERT_EQ(got.cols, expected.cols) << what;
  for (int64_t r = 0; r < got.rows; ++r) {
    for (int64_t c = 0; c < got.cols; ++c) {
      ASSERT_NEAR(got.at(r, c), expected.at(r, c),
                  tolerance + act_unit() * std::abs(expected.at(r, c)))
          << what << ", at " << r << ", " << c;
    }
  }
}

void OpsConformance::expect_same_rows(const View& a, const View& b, const std::string& what) {
  ASSERT_EQ(a.shape, b.shape);
  const HostTensor one = device_.get(a);
  const HostTensor other = device_.get(b);
  if (std::ranges::equal(one.bytes(), other.bytes())) return;
  const Matrix x = to_matrix(one.view());
  const Matrix y = to_matrix(other.view());
  if (!GetParam().rows_are_exact) {
    EXPECT_LE(max_difference(x, y), std::ldexp(1.0, -7) * (1 + max_abs(x))) << what;
    return;
  }
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t c = 0; c < x.cols; ++c) {
      ASSERT_EQ(x.at(r, c), y.at(r, c)) << what << ", at " << r << ", " << c;
    }
  }
}

void OpsConformance::expect_quantised(const View& out, const View& scale, const Matrix& expected,
                                      double tolerance, const std::string& what) {
  const Matrix got = read(out);
  const Matrix scales = read(scale);
  for (int64_t r = 0; r < expected.rows; ++r) {
    const Matrix row = expected.slice(r, 1, 0, expected.cols);
    // The input may have been rounded to act before it is quantised.
    const double slack = 2 * act_unit() + 1e-5;
    const double row_scale = scales.at(0, r);
    ASSERT_NEAR(row_scale, max_abs(row) / 448, (slack * max_abs(row) + tolerance) / 448 + 1e-30)
        << what << ", row " << r;
    for (int64_t c = 0; c < expected.cols; ++c) {
      const double value = expected.at(r, c);
      const double rounding = std::max(std::ldexp(std::abs(value), -4), std::ldexp(row_scale, -10));
      ASSERT_NEAR(got.at(r, c) * row_scale, value,
                  (1 + slack) * rounding + slack * std::abs(value) + 1.1 * tolerance)
          << what << ", at " << r << ", " << c;
    }
  }
}

namespace {

TEST_P(OpsConformance, Linear) {
  for (int round = 0; round < 40; ++round) {
    const int64_t rows = pick(kConformanceRows);
    const int64_t in = pick_width();
    std::vector<int64_t> outs;
    for (int64_t parts = between(1, 3); parts > 0; --parts) outs.push_back(pick_width());
    constexpr DType kStored[] = {DType::kF32, DType::kF16, DType::kBF16};
    const Linear linear = random_linear(outs, in, round % 2 == 0, kStored[round % 3]);
    if (linear.weight.packed == nullptr) continue;
    const Operand x = operand_of(random({rows, in}), linear.weight);
    const View out = poisoned({rows, linear.weight.out});
    ops_.linear({x.x, x.scale, &linear.weight, out});

    const Matrix expected = reference_linear(x.exact, linear.reference, linear.bias);
    const Matrix got = read(out);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t n = 0; n < got.cols; ++n) {
        double magnitude = std::abs(expected.at(r, n));
        for (int64_t k = 0; k < in; ++k) {
          magnitude += std::abs(x.exact.at(r, k) * linear.reference.at(n, k));
        }
        // The sum is rounded before the bias is added, and may be larger than what is left of it.
        const double bias = linear.bias.cols == 0 ? 0 : linear.bias.at(0, n);
        const double largest =
            std::max(std::abs(expected.at(r, n)), std::abs(expected.at(r, n) - bias));
        ASSERT_NEAR(got.at(r, n), expected.at(r, n),
                    product_tolerance(in, magnitude, largest, act_))
            << rows << " rows, " << in << " to " << got.cols << ", at " << r << ", " << n;
      }
    }
  }
}

// The shapes of a small model, more rows than a tile has: large sums, where an error that is not
// rounding shows in the norm of the difference.
TEST_P(OpsConformance, LinearOfAModelsShape) {
  constexpr int64_t kShapes[][2] = {{896, 1152}, {1536, 256}, {320, 4864}};
  for (const auto& [in, out_width] : kShapes) {
    const int64_t outs[] = {out_width};
    const Linear linear = random_linear(outs, in, true, DType::kBF16);
    ASSERT_NE(linear.weight.packed, nullptr);
    for (const int64_t rows : {1, 33, 130}) {
      const Operand x = operand_of(random({rows, in}), linear.weight);
      const View out = poisoned({rows, out_width});
      ops_.linear({x.x, x.scale, &linear.weight, out});
      Matrix difference = read(out);
      const Matrix expected = reference_linear(x.exact, linear.reference, linear.bias);
      for (size_t i = 0; i < difference.values.size(); ++i) {
        difference.values[i] -= expected.values[i];
      }
      const double sums = stores_fp8() ? 2.5e-3 : 1e-5;
      EXPECT_LE(norm_of(difference), (sums + act_unit()) * norm_of(expected))
          << rows << " rows, " << in << " to " << out_width;
    }
  }
}

TEST_P(OpsConformance, LogitsWithScaleAndSoftCap) {
  for (const int64_t vocab : {307, 320}) {
    for (const auto& [cap, scale] :
         {std::pair(0.0f, 1.0f), {30.0f, 1.0f}, {0.0f, 0.125f}, {30.0f, 0.3f}}) {
      const Linear head = random_linear({&vocab, 1}, 128, false);
      if (head.weight.packed == nullptr) continue;
      const Operand x = operand_of(random({5, 128}, 3), head.weight);
      const View out = poisoned(DType::kF32, {5, vocab});
      ops_.logits({x.x, x.scale, &head.weight, cap, out, scale});
      const Matrix got = read(out);
      const Matrix plain = reference_linear(x.exact, head.reference, head.bias);
      for (int64_t r = 0; r < 5; ++r) {
        for (int64_t n = 0; n < vocab; ++n) {
          double magnitude = 0;
          for (int64_t k = 0; k < 128; ++k) {
            magnitude += std::abs(x.exact.at(r, k) * head.reference.at(n, k));
          }
          ASSERT_NEAR(got.at(r, n), reference_soft_cap(plain.at(r, n) * double{scale}, cap),
                      product_tolerance(128, magnitude, 0, DType::kF32) + 1e-4)
              << "cap " << cap << ", vocabulary " << vocab;
        }
      }
    }
  }
}

TEST_P(OpsConformance, EmbedFromATableAndFromATiedHead) {
  const int64_t vocab = 64;
  for (const int64_t width : {1, 16, 33, 64}) {
    const int64_t hidden = wide(width);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const HostTensor rows(random_values(vocab * hidden), dtype, {vocab, hidden});
      const ops::LinearPart part = ops::wide_part(rows.view());
      const int32_t ids[] = {63, 0, 5, 5, 17};
      const View device_ids = device_.put(ids);
      const Matrix table = to_matrix(rows.view());
      const auto expect_rows = [&](const ops::EmbedArgs& args, DType stored, double unit) {
        ops_.embed(args);
        const Matrix got = read(args.out);
        const Matrix expected = rounded(table, stored);
        for (int64_t r = 0; r < 5; ++r) {
          for (int64_t i = 0; i < hidden; ++i) {
            const double value = double{static_cast<float>(expected.at(ids[r], i)) * 3.0f};
            ASSERT_NEAR(got.at(r, i), value, (unit + act_unit()) * std::abs(value) + 0.001 * unit)
                << "row " << ids[r] << ", " << i << " of " << hidden;
          }
        }
      };
      expect_rows({device_.put(rows), nullptr, device_ids, 3.0f, poisoned({5, hidden})}, dtype, 0);
      const auto head = ops_.make_linear({&part, 1});
      if (!head) continue;
      const bool is_f8 = stores_fp8();
      expect_rows({{}, &*head, device_ids, 3.0f, poisoned({5, hidden})},
                  is_f8 ? DType::kF32 : wide_dtype(), is_f8 ? std::ldexp(1.0, -4) : 0);
    }
  }
}

TEST_P(OpsConformance, GatherRows) {
  const int64_t width = wide(33);
  const View x = random({9, width});
  const int32_t rows[] = {8, 0, 3, 3, -1};
  const View out = poisoned({5, width});
  ops_.gather_rows({x, device_.put(rows), out});
  for (int64_t r = 0; r < 4; ++r) {
    EXPECT_TRUE(std::ranges::equal(device_.get(out.rows(r, 1)).bytes(),
                                   device_.get(x.rows(rows[r], 1)).bytes()))
        << "row " << r;
  }
  for (const double value : read(out.rows(4, 1)).values) EXPECT_EQ(value, 0);
}

TEST_P(OpsConformance, PlaceRows) {
  if (ops_.draft_ops() == nullptr) GTEST_SKIP() << "it runs no draft heads";
  const int64_t width = wide(32);
  const View x = random({4, width});
  const auto expect_placed = [&](const View& rows, std::vector<int64_t> targets, int32_t block_size,
                                 int32_t group_layers, int64_t column) {
    const View out = ops_.allocate(x.dtype, {12, 3 * width}).value();  // zeros
    ops_.draft_ops()->place_rows({x, rows, out, column, block_size, group_layers});
    std::vector<int64_t> source(12, -1);
    for (size_t t = 0; t < targets.size(); ++t) {
      if (targets[t] >= 0) source[static_cast<size_t>(targets[t])] = static_cast<int64_t>(t);
    }
    const Matrix placed = read(x);
    const Matrix got = read(out);
    for (int64_t r = 0; r < 12; ++r) {
      const int64_t t = source[static_cast<size_t>(r)];
      for (int64_t i = 0; i < 3 * width; ++i) {
        const bool is_there = t >= 0 && i >= column && i < column + width;
        ASSERT_EQ(got.at(r, i), is_there ? placed.at(t, i - column) : 0) << r << ", " << i;
      }
    }
  };
  expect_placed({}, {0, 1, 2, 3}, 0, 1, width);
  const int32_t rows[] = {7, -1, 0, 11};
  expect_placed(device_.put(rows), {7, -1, 0, 11}, 0, 1, 2 * width);
  // Blocks 2, 0 and 1 of 4 tokens of a group of 3 layers: their slots begin at 24, 0 and 12.
  const int32_t slots[] = {24 + 3, 0, -1, 12 + 1};
  expect_placed(device_.put(slots), {2 * 4 + 3, 0, -1, 4 + 1}, 4, 3, 0);
}

// The state of slots, as the stages of a pipeline pass it on: rows of one word, and of several.
TEST_P(OpsConformance, RowsOfWordsAreGatheredAndPlaced) {
  if (ops_.draft_ops() == nullptr) GTEST_SKIP() << "it places no rows";
  for (const int64_t width : {1, 16}) {
    std::vector<int64_t> words(static_cast<size_t>(7 * width));
    for (int64_t& word : words) word = static_cast<int64_t>(random_());
    const int32_t slots[] = {5, 0, 3};
    const View rows = device_.put(slots);
    const View state = device_.put_as(std::span<const int64_t>(words), DType::kI64, {7, width});
    const View message = ops_.allocate(DType::kI64, {3, width}).value();
    const View other = ops_.allocate(DType::kI64, {7, width}).value();
    ops_.gather_rows({state, rows, message});
    ops_.draft_ops()->place_rows({.x = message, .rows = rows, .out = other});
    std::vector<int64_t> expected(words.size(), 0);
    for (const int32_t slot : slots) {
      const auto begin = words.begin() + slot * width;
      std::copy(begin, begin + width, expected.begin() + slot * width);
    }
    EXPECT_EQ(device_.values<int64_t>(other), expected) << width << " words";
  }
}

TEST_P(OpsConformance, SpreadLogits) {
  if (ops_.draft_ops() == nullptr) GTEST_SKIP() << "it runs no draft heads";
  const float values[] = {1, -2, 3, 4, 5, -6};
  const int32_t ids[] = {1, 4, 5};
  const View x = device_.put_as(std::span<const float>(values), DType::kF32, {2, 3});
  const View out = poisoned(DType::kF32, {2, 7});
  ops_.draft_ops()->spread_logits({x, device_.put(ids), out});
  const Matrix got = read(out);
  for (int64_t r = 0; r < 2; ++r) {
    for (int64_t i = 0; i < 7; ++i) {
      const auto* const found = std::find(std::begin(ids), std::end(ids), i);
      const double expected = found == std::end(ids) ? double{std::numeric_limits<float>::lowest()}
                                                     : double{values[3 * r + (found - ids)]};
      EXPECT_EQ(got.at(r, i), expected) << r << ", " << i;
    }
  }
}

TEST_P(OpsConformance, ResidualAct) {
  if (ops_.draft_ops() == nullptr) GTEST_SKIP() << "it runs no draft heads";
  for (const int64_t columns : {33, 64, 1032}) {
    const int64_t width = wide(columns);
    const View x = random({5, width});
    const View y = random({5, width});
    const Matrix before = read(x);
    const Matrix added = read(y);
    Matrix expected(5, width);
    for (size_t i = 0; i < expected.values.size(); ++i) {
      const double value = added.values[i];
      expected.values[i] = before.values[i] + value / (1 + std::exp(-value));
    }
    const View alone = copy(x.rows(3, 1));
    ops_.draft_ops()->residual_act({x, y});
    expect_close(read(x), expected, 4e-6, "residual_act");
    ops_.draft_ops()->residual_act({alone, y.rows(3, 1)});
    expect_same_rows(alone, x.rows(3, 1), "alone");
  }
}

}  // namespace
}  // namespace rudder::testing
