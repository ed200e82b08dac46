#include "rudder/weights/round_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string_view>
#include <vector>

namespace rudder::weights {
namespace {

std::vector<float> read_back(const BlockType& type, const std::vector<float>& values) {
  const auto blocks = static_cast<int64_t>(values.size()) / type.values;
  std::vector<std::byte> bytes(static_cast<size_t>(blocks) * type.bytes);
  block_rounder(type)(values.data(), blocks, bytes.data());
  std::vector<float> out(values.size());
  type.expand(bytes.data(), blocks, out.data());
  return out;
}

double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  double miss = 0;
  double size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    miss += std::pow(double{got[i]} - want[i], 2);
    size += std::pow(double{want[i]}, 2);
  }
  return std::sqrt(miss / size);
}

// Of normal numbers, whose rows have scales of their own. The bounds are what the bits allow: a
// step is about six deviations over 2^bits, and its error a step over sqrt(12).
TEST(RoundBlocks, ErrorsAreThoseOfTheBits) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> values(256 * 64);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = normal(random) * std::ldexp(1.0f, static_cast<int>(i / 256 % 9) - 6);
  }
  for (const auto& [name, most] : {std::pair<std::string_view, double>{"F32", 0},
                                   {"F16", 3e-4},
                                   {"BF16", 2.5e-3},
                                   {"Q8_0", 6e-3},
                                   {"Q6_K", 2e-2},
                                   {"Q5_0", 4.5e-2},
                                   {"Q4_K", 7.5e-2},
                                   {"Q4_0", 9.5e-2}}) {
    const BlockType& type = *find_block_type(name);
    const double error = relative_error(read_back(type, values), values);
    EXPECT_LE(error, most) << name;
    EXPECT_GE(error, most / 3) << name;
  }
}

TEST(RoundBlocks, ZerosStayZerosAndCodesStayThemselves) {
  for (const std::string_view name : {"Q8_0", "Q6_K", "Q5_0", "Q4_K", "Q4_0"}) {
    const BlockType& type = *find_block_type(name);
    const std::vector<float> zeros(256);
    EXPECT_EQ(read_back(type, zeros), zeros) << name;
    // Numbers that a block has: the lowest code is the largest magnitude.
    std::vector<float> grid(256);
    for (size_t i = 0; i < grid.size(); ++i) grid[i] = static_cast<float>(i % 8) - 8;
    if (type.values == 32) {
      const std::vector<float> got = read_back(type, grid);
      EXPECT_LE(relative_error(got, grid), name == "Q8_0" ? 5e-3 : 0) << name;
    }
  }
}

TEST(RoundBlocks, TypesThatAreReadOnlyHaveNone) {
  EXPECT_EQ(block_rounder(*find_block_type("Q2_K")), nullptr);
  EXPECT_EQ(block_rounder(*find_block_type("IQ4_XS")), nullptr);
}

}  // namespace
}  // namespace rudder::weights
