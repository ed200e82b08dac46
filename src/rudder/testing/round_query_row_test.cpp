#include "rudder/testing/round_query_row.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace rudder::testing {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<float> round_query(std::vector<float> row) {
  round_query_row(row);
  return row;
}

// Every finite value of F8E4M3 below 256, of either sign.
std::vector<float> query_grid() {
  std::vector<float> grid;
  for (uint32_t bits = 0; bits <= 0xff; ++bits) {
    const float value = tensor::to_float(tensor::F8E4M3{static_cast<uint8_t>(bits)});
    if (std::abs(value) < 256) grid.push_back(value);
  }
  return grid;
}

TEST(RoundQueryRow, ValuesOfTheGridStay) {
  const std::vector<float> grid = query_grid();
  ASSERT_EQ(grid.size(), 240U);
  for (const int exponent : {-117, -40, -1, 0, 1, 7, 100, 120}) {
    std::vector<float> row;
    for (const float value : grid) row.push_back(std::ldexp(value, exponent));
    EXPECT_EQ(query_factor(row), std::ldexp(1.0f, -exponent));
    EXPECT_EQ(round_query(row), row) << exponent;
  }
}

// Every bf16 value beside a larger one becomes the nearest of the grid, of two the even one.
TEST(RoundQueryRow, TheNearestValueIsTaken) {
  const std::vector<float> grid = query_grid();
  for (const int exponent : {-30, 0, 3}) {
    for (uint32_t bits = 0; bits < 0x4380; ++bits) {  // below 256
      const float value = tensor::to_float(tensor::BF16{static_cast<uint16_t>(bits)});
      const float got =
          round_query({std::ldexp(value, exponent), std::ldexp(-255.0f, exponent)})[0];
      const float at = std::ldexp(got, -exponent);
      const uint32_t code = tensor::to_f8e4m3(at).bits;
      ASSERT_EQ(tensor::to_float(tensor::F8E4M3{static_cast<uint8_t>(code)}), at) << value;
      for (const int step : {-1, 1}) {
        if (code == 0 && step < 0) continue;
        const auto other = static_cast<uint8_t>(static_cast<int>(code) + step);
        const float beside = std::abs(tensor::to_float(tensor::F8E4M3{other}) - value);
        ASSERT_LE(std::abs(at - value), beside) << value;
        ASSERT_TRUE(std::abs(at - value) < beside || code % 2 == 0) << value;
      }
    }
  }
}

TEST(RoundQueryRow, TheLargestMagnitudeIsBelow256) {
  EXPECT_EQ(query_factor(std::vector<float>{0.5f, -1}), 128);
  EXPECT_EQ(query_factor(std::vector<float>{0.5f, -0.999f}), 256);
  EXPECT_EQ(query_factor(std::vector<float>{255.9f}), 1);
  EXPECT_EQ(query_factor(std::vector<float>{256}), 0.5f);
  EXPECT_EQ(query_factor(std::vector<float>{0, -0.0f}), 1);
  EXPECT_EQ(query_factor(std::vector<float>{}), 1);
  EXPECT_EQ(query_factor(std::vector<float>{0x1.0p-140f}), 0x1.0p126f);
  EXPECT_EQ(query_factor(std::vector<float>{0x1.fp127f}), 0x1.0p-120f);
  EXPECT_EQ(round_query({0, -0.0f}), (std::vector<float>{0, 0}));
  EXPECT_EQ(round_query({0x1.0p-140f}), (std::vector<float>{0}));
  EXPECT_EQ(round_query({255.9f, 0x1.0p-11f}), (std::vector<float>{256, 0}));
}

TEST(RoundQueryRow, WhatIsNotFiniteIsNaNAndAlone) {
  const std::vector<float> row =
      round_query({kNaN, 1, std::numeric_limits<float>::infinity(), -1.0625f});
  EXPECT_TRUE(std::isnan(row[0]));
  EXPECT_EQ(row[1], 1);
  EXPECT_TRUE(std::isnan(row[2]));
  EXPECT_EQ(row[3], -1);
}

}  // namespace
}  // namespace rudder::testing
