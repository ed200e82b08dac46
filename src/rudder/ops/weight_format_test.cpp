#include "rudder/ops/weight_format.h"

#include <gtest/gtest.h>

namespace rudder::ops {
namespace {

using tensor::DType;

constexpr WeightFormat kInt4 = {
    .codes = Codes::kU4, .scale = ScaleType::kF16, .group = 32, .offset = Offset::kZero};
constexpr WeightFormat kBlocks = {
    .codes = Codes::kF8E4M3, .scale = ScaleType::kF32, .group = 128, .block_rows = 128};
constexpr WeightFormat kMx = {
    .codes = Codes::kU4, .scale = ScaleType::kE8M0, .group = 32, .table = CodeTable::kE2M1};

constexpr WeightFormat kMiddle = {
    .codes = Codes::kU4, .scale = ScaleType::kF16, .group = 32, .offset = Offset::kMiddle};
constexpr WeightFormat kNormal = {
    .codes = Codes::kU4, .scale = ScaleType::kF32, .group = 32, .table = CodeTable::kIq4Nl};

TEST(WeightFormat, BytesOfItsParts) {
  EXPECT_EQ(stored_parts({}, 3, 70).bytes(), 3 * 70 * 2);
  EXPECT_EQ(stored_parts(kFp8Rows, 48, 70).bytes(), 48 * 70 + 48 * 4);
  // Codes share bytes, the last group of a row is a short one.
  EXPECT_EQ(stored_parts(kInt4, 48, 70).bytes(), 48 * 35 + 48 * 3 * (2 + 1));
  EXPECT_EQ(stored_parts(kMx, 48, 64).bytes(), 48 * 32 + 48 * 2);
  EXPECT_EQ(stored_parts(kMiddle, 48, 64).bytes(), 48 * 32 + 48 * 2 * 2) << "no offsets";
  EXPECT_EQ(stored_parts(kMiddle, 48, 64).offsets.rows, 0);
  EXPECT_EQ(stored_parts(kNormal, 48, 64).bytes(), 48 * 32 + 48 * 2 * 4);
  WeightFormat minima = kInt4;
  minima.offset = Offset::kMinimum;
  EXPECT_EQ(stored_parts(minima, 48, 64).bytes(), 48 * 32 + 48 * 2 * (2 + 2));
  // The last blocks of rows and of inputs are short ones.
  const StoredParts blocks = stored_parts(kBlocks, 300, 200);
  EXPECT_EQ(blocks.scales.rows, 3);
  EXPECT_EQ(blocks.scales.columns, 2);
  EXPECT_EQ(blocks.bytes(), 300 * 200 + 6 * 4);
  WeightFormat tiles = minima;
  tiles.tile_rows = 64;
  tiles.tile_inputs = 128;
  EXPECT_EQ(stored_parts(tiles, 65, 129).bytes(), stored_parts(minima, 128, 256).bytes());
}

TEST(WeightFormat, ACutSplitsNoGroup) {
  EXPECT_TRUE(check_inputs(kInt4, {32, 64}, 128));
  EXPECT_TRUE(check_inputs(kInt4, {96, 44}, 140)) << "a short last group is whole";
  EXPECT_FALSE(check_inputs(kInt4, {16, 64}, 128));
  const auto cut = check_inputs(kInt4, {32, 40}, 128);
  ASSERT_FALSE(cut);
  EXPECT_EQ(cut.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(cut.error().message,
            "a part that ends at input 72 cuts a scale of U4 in groups of 32 with zeros");
  EXPECT_TRUE(check_rows(kInt4, {7, 5}, 48));
  EXPECT_TRUE(check_rows(kBlocks, {128, 172}, 300));
  EXPECT_FALSE(check_rows(kBlocks, {64, 128}, 300));
  EXPECT_FALSE(check_rows(kBlocks, {0, 64}, 300));
  // A byte is not cut where a scale would not be.
  EXPECT_FALSE(check_inputs({.codes = Codes::kU4, .scale = ScaleType::kF32}, {0, 3}, 8));
}

TEST(WeightFormat, InputFormsOfProducts) {
  EXPECT_TRUE(may_take({}, InputForm::kAct));
  EXPECT_FALSE(may_take({}, InputForm::kF8Rows));
  EXPECT_TRUE(may_take(kFp8Rows, InputForm::kF8Rows));
  EXPECT_FALSE(may_take(kBlocks, InputForm::kF8Rows));
  EXPECT_FALSE(may_take(kInt4, InputForm::kF8Rows));
}

TEST(WeightFormat, NamesAndWideDTypes) {
  EXPECT_EQ(format_name({}), "BF16");
  EXPECT_EQ(format_name(kFp8Rows), "F8_E4M3");
  EXPECT_EQ(format_name(kBlocks), "F8_E4M3 in blocks of 128 x 128");
  EXPECT_EQ(format_name(kMx), "U4 of E2M1 in groups of 32");
  EXPECT_EQ(format_name(kMiddle), "U4 in groups of 32 around 8");
  EXPECT_EQ(format_name(kNormal), "U4 of IQ4_NL in groups of 32");
  EXPECT_EQ(wide_format(DType::kF16)->codes, Codes::kF16);
  EXPECT_FALSE(wide_format(DType::kI32));
}

}  // namespace
}  // namespace rudder::ops
