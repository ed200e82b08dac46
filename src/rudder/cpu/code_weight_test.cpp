#include "rudder/cpu/code_weight.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <list>
#include <random>
#include <vector>

#include "rudder/cpu/make_weight.h"
#include "rudder/ops/stored_row.h"

namespace rudder::cpu {
namespace {

using ops::Codes;
using ops::CodeTable;
using ops::Offset;
using ops::ScaleType;
using ops::WeightFormat;
using tensor::DType;
using tensor::View;

std::vector<WeightFormat> kept_formats() {
  std::vector<WeightFormat> formats;
  for (const Codes codes : {Codes::kI8, Codes::kU4}) {
    for (const Offset offset : {Offset::kNone, Offset::kMinimum, Offset::kZero, Offset::kMiddle}) {
      if (codes == Codes::kI8 && offset == Offset::kMiddle) continue;
      for (const int32_t group : {0, 16, 32, 64, 128}) {
        const ScaleType scale = group == 16   ? ScaleType::kBF16
                                : group == 32 ? ScaleType::kF16
                                              : ScaleType::kF32;
        formats.push_back({.codes = codes, .scale = scale, .group = group, .offset = offset});
      }
    }
  }
  for (const CodeTable table : {CodeTable::kE2M1, CodeTable::kIq4Nl}) {
    for (const ScaleType scale : {ScaleType::kE8M0, ScaleType::kF16}) {
      formats.push_back({.codes = Codes::kU4, .scale = scale, .group = 32, .table = table});
    }
  }
  return formats;
}

class Drawn {
 public:
  // Random codes; scales and minima of any sign, zeros of U4 and of eight bits.
  ops::LinearPart part(const WeightFormat& format, int64_t out, int64_t in) {
    const ops::StoredParts shape = ops::stored_parts(format, out, in);
    ops::LinearPart part;
    part.format = format;
    part.codes = bytes(shape.codes, 0, 255);
    part.scales = numbers(shape.scales);
    if (shape.offsets.rows == 0) return part;
    part.offsets = format.offset == Offset::kZero
                       ? bytes(shape.offsets, 0, format.codes == Codes::kU4 ? 15 : 255)
                       : numbers(shape.offsets);
    return part;
  }
  View bias(int64_t out) { return numbers({DType::kF32, 1, out}); }

  std::vector<float> rows(int64_t count) {
    std::vector<float> x(static_cast<size_t>(count));
    for (float& value : x) value = static_cast<float>(normal_(random_));
    return x;
  }

 private:
  View bytes(const ops::StoredPart& part, int low, int high) {
    auto& memory = memory_.emplace_back(static_cast<size_t>(part.bytes()));
    for (uint8_t& byte : memory) {
      byte = static_cast<uint8_t>(std::uniform_int_distribution<int>(low, high)(random_));
    }
    return {memory.data(), part.dtype, {part.rows, part.columns}};
  }
  View numbers(const ops::StoredPart& part) {
    if (part.dtype == DType::kU8) return bytes(part, 110, 124);
    std::vector<float> values = rows(part.rows * part.columns);
    for (float& value : values) value *= 0.01f;
    auto& memory = memory_.emplace_back(static_cast<size_t>(part.bytes()));
    EXPECT_TRUE(convert_values(values.data(), DType::kF32, memory.data(), part.dtype,
                               part.rows * part.columns)
                    .has_value());
    return {memory.data(), part.dtype, {part.rows, part.columns}};
  }

  std::mt19937_64 random_{23};
  std::normal_distribution<double> normal_;
  std::list<std::vector<uint8_t>> memory_;
};

// The formula of ops::kI8InputGroup.
std::vector<float> rounded(std::vector<float> x, int64_t width) {
  for (size_t row = 0; row < x.size(); row += static_cast<size_t>(width)) {
    for (int64_t begin = 0; begin < width; begin += 32) {
      float* const values = x.data() + row + begin;
      const int64_t count = std::min<int64_t>(32, width - begin);
      float most = 0;
      for (int64_t i = 0; i < count; ++i) most = std::max(most, std::abs(values[i]));
      for (int64_t i = 0; i < count; ++i) {
        values[i] = most / 127 * std::nearbyint(values[i] * (127 / most));
      }
    }
  }
  return x;
}

class CodeWeights : public ::testing::TestWithParam<Isa> {
 protected:
  std::vector<float> multiply(const ops::LinearWeight& weight, const std::vector<float>& x) {
    const auto rows = static_cast<int64_t>(x.size()) / weight.in;
    std::vector<float> out(static_cast<size_t>(rows * weight.out), -77.0f);
    EXPECT_TRUE(static_cast<const FastWeight&>(*weight.packed)
                    .multiply(kernels_for(GetParam()), pool_, scratch_, x.data(), rows, out.data(),
                              weight.out)
                    .has_value());
    return out;
  }
  void expect_product(const std::vector<ops::LinearPart>& parts, int64_t rows);

  ThreadPool pool_{2};
  ProductScratch scratch_;
  Drawn drawn_;
};

// Against the numbers of the file in fp64; each row alone has the bits that it has among the
// others.
void CodeWeights::expect_product(const std::vector<ops::LinearPart>& parts, int64_t rows) {
  const int64_t in = parts.front().in();
  const auto weight = make_weight(parts, DType::kBF16, pool_).value();
  ASSERT_TRUE(weight.rounds_x);
  const std::vector<float> x = drawn_.rows(rows * in);
  const std::vector<float> exact = rounded(x, in);
  const std::vector<float> out = multiply(weight, x);
  std::vector<float> numbers(static_cast<size_t>(in));
  std::vector<float> unpacked(static_cast<size_t>(in));
  int64_t column = 0;
  for (const ops::LinearPart& part : parts) {
    for (int64_t row = 0; row < part.out(); ++row, ++column) {
      read_stored_row(part, row, numbers.data());
      static_cast<const FastWeight&>(*weight.packed).read_row(column, unpacked.data());
      ASSERT_EQ(unpacked, numbers) << "row " << column;
      for (int64_t r = 0; r < rows; ++r) {
        double sum = part.bias.empty() ? 0 : part.bias.as<float>()[row];
        double size = std::abs(sum);
        for (int64_t i = 0; i < in; ++i) {
          const double term = double{exact[static_cast<size_t>(r * in + i)]} *
                              double{numbers[static_cast<size_t>(i)]};
          sum += term;
          size += std::abs(term);
        }
        // Offsets are taken from sums that are some times larger.
        ASSERT_NEAR(out[static_cast<size_t>(r * weight.out + column)], sum, std::ldexp(size, -18))
            << "row " << r << ", column " << column;
      }
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<float> alone =
        multiply(weight, {x.begin() + r * in, x.begin() + (r + 1) * in});
    const std::vector<float> among(out.begin() + r * weight.out,
                                   out.begin() + (r + 1) * weight.out);
    ASSERT_EQ(alone, among) << "row " << r << " of " << rows;
  }
}

TEST_P(CodeWeights, ProductsOfEveryKeptFormat) {
  for (const WeightFormat& format : kept_formats()) {
    ASSERT_TRUE(keeps_codes(format));
    SCOPED_TRACE(ops::format_name(format));
    // Widths with and without a broken block and group; two, and a broken, panel.
    expect_product({drawn_.part(format, 21, 192), drawn_.part(format, 14, 192)}, 1);
    expect_product({drawn_.part(format, 37, 74)}, 3);
    expect_product({drawn_.part(format, 65, 416)}, 15);
  }
}

TEST_P(CodeWeights, StacksOfSeveralFormatsAndABias) {
  const WeightFormat q4 = {
      .codes = Codes::kU4, .scale = ScaleType::kF32, .group = 32, .offset = Offset::kMinimum};
  const WeightFormat q6 = {.codes = Codes::kI8, .scale = ScaleType::kF32, .group = 16};
  std::vector<ops::LinearPart> parts = {drawn_.part(q4, 40, 160), drawn_.part(q4, 24, 160),
                                        drawn_.part(q6, 19, 160)};
  for (ops::LinearPart& part : parts) part.bias = drawn_.bias(part.out());
  expect_product(parts, 9);
}

TEST_P(CodeWeights, WhatIsNotFiniteStaysSoInItsRow) {
  const ops::LinearPart part =
      drawn_.part({.codes = Codes::kU4, .scale = ScaleType::kF16, .group = 32}, 33, 96);
  const auto weight = make_weight({&part, 1}, DType::kBF16, pool_).value();
  std::vector<float> x = drawn_.rows(3 * 96);
  const std::vector<float> clean = multiply(weight, x);
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    x[96 + 41] = value;
    const std::vector<float> out = multiply(weight, x);
    for (size_t i = 0; i < out.size(); ++i) {
      if (i / 33 == 1) {
        EXPECT_TRUE(std::isnan(out[i])) << i;
      } else {
        EXPECT_EQ(out[i], clean[i]) << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, CodeWeights, ::testing::ValuesIn(available_isas()),
                         [](const auto& info) {
                           std::string name(isa_name(info.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(KeepsCodes, WhatHasProductsAlone) {
  EXPECT_FALSE(keeps_codes({}));
  EXPECT_FALSE(keeps_codes(ops::kFp8Rows));
  WeightFormat format = {.codes = Codes::kU4, .scale = ScaleType::kF16, .group = 32};
  EXPECT_TRUE(keeps_codes(format));
  EXPECT_EQ(stored_format_of(format, DType::kBF16), format);
  EXPECT_EQ(stored_format_of(format, DType::kF32), WeightFormat{.codes = Codes::kF32});
  format.group = 24;
  EXPECT_FALSE(keeps_codes(format));
  format.group = 32;
  format.block_rows = 2;
  EXPECT_FALSE(keeps_codes(format));
  format.block_rows = 1;
  format.table = CodeTable::kNf4;
  EXPECT_FALSE(keeps_codes(format));
}

}  // namespace
}  // namespace rudder::cpu
