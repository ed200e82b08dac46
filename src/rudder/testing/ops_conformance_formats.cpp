// Weights in every format of ops::WeightFormat, against formulas of their own in fp64.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <list>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "rudder/testing/ops_conformance.h"

namespace rudder::testing {
namespace {

using ops::Codes;
using ops::CodeTable;
using ops::Offset;
using ops::ScaleType;
using ops::WeightFormat;
using tensor::DType;
using tensor::Shape;

// Those that files of the field have, and some that they do not.
std::vector<WeightFormat> formats() {
  std::vector<WeightFormat> out = {ops::kFp8Rows};
  for (const int32_t block : {1, 16, 128}) {
    for (const int32_t group : {32, 128}) {
      out.push_back({.codes = Codes::kF8E4M3,
                     .scale = block == 128 ? ScaleType::kE8M0 : ScaleType::kF32,
                     .group = group,
                     .block_rows = block});
    }
  }
  for (const Codes codes : {Codes::kI8, Codes::kU4}) {
    for (const Offset offset : {Offset::kNone, Offset::kMinimum, Offset::kZero}) {
      for (const int32_t group : {0, 16, 64}) {
        out.push_back({.codes = codes,
                       .scale = group == 16 ? ScaleType::kBF16 : ScaleType::kF16,
                       .group = group,
                       .offset = offset});
      }
    }
  }
  for (const ScaleType scale : {ScaleType::kF16, ScaleType::kF32}) {
    for (const int32_t group : {0, 32, 64}) {
      out.push_back(
          {.codes = Codes::kU4, .scale = scale, .group = group, .offset = Offset::kMiddle});
    }
  }
  out.push_back(
      {.codes = Codes::kU4, .scale = ScaleType::kE8M0, .group = 32, .table = CodeTable::kE2M1});
  for (const ScaleType scale : {ScaleType::kF16, ScaleType::kF32}) {
    out.push_back({.codes = Codes::kU4, .scale = scale, .group = 32, .table = CodeTable::kIq4Nl});
  }
  out.push_back(
      {.codes = Codes::kU4, .scale = ScaleType::kF32, .group = 64, .table = CodeTable::kNf4});
  return out;
}

double e2m1(int code) {
  const int exponent = code >> 1 & 3;
  const double mantissa = (code & 1) / 2.0;
  const double number = exponent == 0 ? mantissa : std::ldexp(1 + mantissa, exponent - 1);
  return code & 8 ? -number : number;
}

// Of a U4 code, with its middle taken off.
double number_of(const WeightFormat& format, int code) {
  switch (format.table) {
    case CodeTable::kE2M1:
      return e2m1(code);
    case CodeTable::kIq4Nl:
      return std::vector{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}
          .at(static_cast<size_t>(code));
    case CodeTable::kNf4:
      return ops::kNf4Numbers[code];
    case CodeTable::kNone:
      return format.offset == Offset::kMiddle ? code - 8 : code;
  }
  return 0;
}

class DrawnParts {
 public:
  explicit DrawnParts(std::mt19937_64& random) : random_(random) {}

  // A part with random codes and scales, as long as this lives; its numbers go to `numbers` and
  // what their terms come to, regardless of signs, to `sizes`. All of them are whole multiples of
  // 2^-20 below 2^4, or NF4 by a power of two: f32 holds them, and what is computed on the way.
  ops::LinearPart draw(const WeightFormat& format, int64_t out, int64_t in, Matrix& numbers,
                       Matrix& sizes) {
    const ops::StoredParts shapes = ops::stored_parts(format, out, in);
    HostTensor& codes =
        memory_.emplace_back(shapes.codes.dtype, Shape{shapes.codes.rows, shapes.codes.columns});
    for (uint8_t& code : codes.values<uint8_t>()) {
      code = static_cast<uint8_t>(between(0, 255));
      if (format.codes == Codes::kF8E4M3 && (code & 0x7f) == 0x7f) code = 0;  // NaN
    }
    std::vector<float> scales;
    for (int64_t i = 0; i < shapes.scales.rows * shapes.scales.columns; ++i) {
      const bool is_power = format.scale == ScaleType::kE8M0 || format.table == CodeTable::kNf4;
      scales.push_back(is_power ? std::ldexp(1.0f, static_cast<int>(between(-10, -6)))
                                : std::ldexp(static_cast<float>(between(64, 127)), -16));
    }
    HostTensor& stored_scales = put_numbers(scales, shapes.scales, false);
    ops::LinearPart part{.format = format, .codes = codes.view(), .scales = stored_scales.view()};
    std::vector<float> offsets(scales.size());
    if (shapes.offsets.rows > 0) {
      const bool is_zero = format.offset == Offset::kZero;
      for (float& offset : offsets) {
        const auto drawn = static_cast<float>(between(0, is_zero ? 255 : 127));
        offset = is_zero ? drawn : std::ldexp(drawn, -14);
      }
      HostTensor& stored = put_numbers(offsets, shapes.offsets, is_zero);
      part.offsets = stored.view();
    }
    append_numbers(part, scales, offsets, numbers, sizes);
    return part;
  }

 private:
  int64_t between(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }

  HostTensor& put_numbers(const std::vector<float>& values, const ops::StoredPart& part,
                          bool is_zero) {
    const Shape shape{part.rows, part.columns};
    if (part.dtype != DType::kU8) return memory_.emplace_back(values, part.dtype, shape);
    HostTensor& bytes = memory_.emplace_back(DType::kU8, shape);
    for (size_t i = 0; i < values.size(); ++i) {
      const double stored = is_zero ? values[i] : std::log2(values[i]) + 127;
      bytes.values<uint8_t>()[i] = static_cast<uint8_t>(stored);
    }
    return bytes;
  }

  static double code_of(const ops::LinearPart& part, int64_t row, int64_t i) {
    const ops::View& codes = part.codes;
    const int64_t width = codes.shape[1];
    switch (part.format.codes) {
      case Codes::kI8:
        return codes.as<int8_t>()[row * width + i];
      case Codes::kU4: {
        const int code = codes.as<uint8_t>()[row * width + i / 2] >> (i % 2 * 4) & 15;
        return number_of(part.format, code);
      }
      default:
        return to_matrix(codes.rows(row, 1)).at(0, i);
    }
  }

  static void append_numbers(const ops::LinearPart& part, const std::vector<float>& scales,
                             const std::vector<float>& offsets, Matrix& numbers, Matrix& sizes) {
    const WeightFormat& format = part.format;
    const int64_t in = part.in();
    for (int64_t row = 0; row < part.out(); ++row) {
      for (int64_t i = 0; i < in; ++i) {
        const int64_t group = format.group == 0 ? 0 : i / format.group;
        const auto index =
            static_cast<size_t>(row / format.block_rows * part.scales.shape[1] + group);
        const double zero = format.offset == Offset::kZero ? double{offsets[index]} : 0.0;
        const double least = format.offset == Offset::kMinimum ? double{offsets[index]} : 0.0;
        const double scaled = (code_of(part, row, i) - zero) * double{scales[index]};
        numbers.values.push_back(scaled - least);
        sizes.values.push_back(std::abs(scaled) + least);
      }
    }
    numbers.rows += part.out();
    sizes.rows += part.out();
  }

  std::mt19937_64& random_;
  std::list<HostTensor> memory_;
};

// How exact a sum is, as a power of two of its terms's terms: of a GPU, whose fp8 sums keep 14
// bits and are rounded before and after they are scaled; which rounds numbers to act where it
// does not multiply codes, and tokens to 8 bits in front of weights with a scale a row.
int bits_of_sums(const WeightFormat& format, const WeightFormat& stored, DType act) {
  if (stored.is_wide()) return -18;
  if (act != DType::kBF16) return -12;
  if (format.codes == Codes::kI8 && format.group == 0) return -8;
  return stored == ops::kFp8Rows || stored == ops::kMxfp4 ? -12 : -9;
}

}  // namespace

// Parts of one format, stacked. What a backend does not multiply out is not quantised again; what
// it has no products of, it refuses.
TEST_P(OpsConformance, LinearOfEveryFormat) {
  constexpr int64_t kIn = 192;
  for (const WeightFormat& format : formats()) {
    SCOPED_TRACE(ops::format_name(format));
    DrawnParts drawn(random_);
    Matrix numbers(0, kIn);
    Matrix sizes(0, kIn);
    std::vector<ops::LinearPart> parts;
    for (const int64_t out : {128, 64}) {
      parts.push_back(drawn.draw(format, out, kIn, numbers, sizes));
    }
    const auto stored = ops_.stored_format(format);
    const auto weight = ops_.make_linear(parts);
    ASSERT_EQ(stored.has_value(), weight.has_value());
    if (!stored) {
      EXPECT_EQ(stored.error().code, ErrorCode::kUnsupported);
      EXPECT_EQ(weight.error().code, ErrorCode::kUnsupported);
      continue;
    }
    EXPECT_EQ(weight->format, *stored);
    EXPECT_TRUE(ops::may_take(*stored, weight->input));
    // A backend's own form of codes and scales holds the same numbers.
    const bool is_kept = !stored->is_wide();
    const int bits = bits_of_sums(format, *stored, act_);
    const Matrix multiplied =
        is_kept ? numbers : rounded(numbers, ops::stored_parts(*stored, 1, 1).codes.dtype);
    for (const int64_t rows : {1, 5, 33, 70}) {
      const Operand x = operand_of(random({rows, kIn}), *weight);
      const tensor::View out = poisoned({rows, weight->out});
      ops_.linear({x.x, x.scale, &*weight, out});
      const Matrix expected = reference_linear(x.exact, multiplied, {});
      const Matrix got = read(out);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t n = 0; n < got.cols; ++n) {
          double size = 0;
          for (int64_t k = 0; k < kIn; ++k) size += std::abs(x.exact.at(r, k)) * sizes.at(n, k);
          ASSERT_NEAR(got.at(r, n), expected.at(r, n),
                      std::ldexp(size, bits) + 2 * unit_of(act_) * std::abs(expected.at(r, n)))
              << rows << " rows, at " << r << ", " << n;
        }
      }
    }
  }
}

// Experts in codes that a backend may multiply as they are: in tiles of few pairs and of many.
TEST_P(OpsConformance, ExpertsOfEveryFormat) {
  ops::ExpertOps* const experts = ops_.expert_ops();
  if (experts == nullptr) GTEST_SKIP() << "it has no experts";
  constexpr int64_t kExperts = 5;
  constexpr int64_t kChosen = 2;
  constexpr int64_t kIn = 192;
  constexpr int64_t kHalf = 56;
  for (const WeightFormat& format : formats()) {
    SCOPED_TRACE(ops::format_name(format));
    DrawnParts drawn(random_);
    std::vector<Matrix> numbers(kExperts, Matrix(0, kIn));
    std::vector<Matrix> sizes(kExperts, Matrix(0, kIn));
    std::vector<Matrix> biases(kExperts, Matrix(1, 2 * kHalf));
    std::list<std::vector<float>> memory;
    std::vector<ops::LinearPart> parts;
    for (size_t e = 0; e < kExperts; ++e) {
      for (const int64_t half : {0, 1}) {
        parts.push_back(drawn.draw(format, kHalf, kIn, numbers[e], sizes[e]));
        std::vector<float>& bias = memory.emplace_back(random_values(kHalf));
        for (size_t i = 0; i < bias.size(); ++i) {
          bias[i] = tensor::to_float(tensor::to_bf16(bias[i]));
          biases[e].at(0, half * kHalf + static_cast<int64_t>(i)) = double{bias[i]};
        }
        parts.back().bias = {bias.data(), DType::kF32, {kHalf}};
      }
    }
    const auto stored = ops_.format_for(format, ops::ProductUse::kExperts);
    const auto weight = experts->make_experts(parts, kExperts);
    if (!stored) {
      ASSERT_FALSE(weight);
      EXPECT_EQ(weight.error().code, ErrorCode::kUnsupported);
      continue;
    }
    ASSERT_TRUE(weight) << weight.error().to_string();
    ASSERT_EQ(weight->out, 2 * kHalf);
    EXPECT_EQ(weight->format, *stored);
    if (stored->is_wide()) {
      for (Matrix& all : numbers) {
        all = rounded(all, ops::stored_parts(*stored, 1, 1).codes.dtype);
      }
    }
    const int bits = bits_of_sums(format, *stored, act_);
    for (const bool is_gated : {false, true}) {
      const int64_t columns = is_gated ? kHalf : 2 * kHalf;
      const auto activation = is_gated ? std::optional(ops::Activation::kClampedSwiglu)
                                       : std::optional<ops::Activation>{};
      for (const int64_t tokens : {1, 9, 40, 300}) {
        std::vector<int32_t> ids;
        for (int64_t t = 0; t < tokens; ++t) {
          const auto first = static_cast<int32_t>(random_() % kExperts);
          ids.push_back(first);
          ids.push_back((first + 1 + static_cast<int32_t>(t % 3)) % static_cast<int32_t>(kExperts));
        }
        const tensor::View chosen =
            device_.put_as(std::span<const int32_t>(ids), DType::kI32, {tokens, kChosen});
        const Operand x = operand_of(random({tokens, kIn}), *weight);
        const tensor::View out = poisoned(act_, {tokens * kChosen, columns});
        const auto multiply = [&](int64_t first, int64_t count, const tensor::View& to) {
          experts->expert_linear(
              {.x = x.x.rows(first, count),
               .x_scale = x.scale.empty() ? tensor::View{} : x.scale.rows(first, count),
               .chosen = chosen.rows(first, count),
               .weight = &*weight,
               .activation = activation,
               .out = to});
        };
        multiply(0, tokens, out);
        const Matrix got = read(out);
        for (int64_t pair = 0; pair < got.rows; pair += std::max<int64_t>(1, got.rows / 20)) {
          const auto e = static_cast<size_t>(ids[static_cast<size_t>(pair)]);
          const Matrix row = x.exact.slice(pair / kChosen, 1, 0, kIn);
          const Matrix sums = reference_linear(row, numbers[e], biases[e]);
          const auto error_of = [&](int64_t n) {
            double size = std::abs(biases[e].at(0, n));
            for (int64_t k = 0; k < kIn; ++k) size += std::abs(row.at(0, k)) * sizes[e].at(n, k);
            return std::ldexp(size, bits);
          };
          const Matrix expected = is_gated ? reference_gated_act(sums, *activation) : sums;
          for (int64_t n = 0; n < columns; ++n) {
            const double gate = std::abs(sums.at(0, n)) + 1;
            const double up = is_gated ? 1.2 * (std::abs(sums.at(0, kHalf + n)) + 1) : 1;
            const double error =
                is_gated ? up * error_of(n) + gate * error_of(kHalf + n) : error_of(n);
            ASSERT_NEAR(got.at(pair, n), expected.at(0, n),
                        error + 2 * unit_of(act_) * std::abs(expected.at(0, n)))
                << tokens << " tokens, gated " << is_gated << ", pair " << pair << ", column " << n;
          }
        }
        const tensor::View alone = poisoned(act_, {kChosen, columns});
        multiply(tokens - 1, 1, alone);
        expect_same_rows(alone, out.rows((tokens - 1) * kChosen, kChosen), "alone");
      }
    }
  }
}

}  // namespace rudder::testing
