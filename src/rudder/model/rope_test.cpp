#include "rudder/model/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace rudder::model {
namespace {

constexpr double kTheta = 10000;

RopeSpec rope_of(RopeScaling scaling, int32_t dim = 16) {
  return {kTheta, dim, std::move(scaling)};
}

double plain(int i, int dim = 16) {
  return std::pow(kTheta, -2.0 * i / dim);
}

TEST(Rope, DefaultAndLinear) {
  const auto plain_freqs = rope_frequencies(rope_of(RopeDefault{}), 100);
  const auto linear = rope_frequencies(rope_of(RopeLinear{4}), 100);
  ASSERT_EQ(plain_freqs.size(), 8u);
  for (int i = 0; i < 8; ++i) {
    EXPECT_DOUBLE_EQ(plain_freqs[static_cast<size_t>(i)], plain(i));
    EXPECT_DOUBLE_EQ(linear[static_cast<size_t>(i)], plain(i) / 4);
  }
}

TEST(Rope, DynamicIsPlainUpToTheOriginalLength) {
  const RopeSpec rope = rope_of(RopeDynamic{2, 64});
  EXPECT_EQ(rope_frequencies(rope, 64), rope_frequencies(rope_of(RopeDefault{}), 64));
  // Twice the length: theta * (2 * 2 - 1)^(16 / 14).
  const double theta = kTheta * std::pow(3.0, 16.0 / 14.0);
  const auto freqs = rope_frequencies(rope, 128);
  for (int i = 0; i < 8; ++i) {
    EXPECT_NEAR(freqs[static_cast<size_t>(i)], std::pow(theta, -2.0 * i / 16), 1e-15);
  }
}

TEST(Rope, Llama3KeepsShortWavesAndStretchesLongOnes) {
  const auto freqs = rope_frequencies(rope_of(RopeLlama3{8, 1, 4, 64}), 100);
  const double two_pi = 2 * std::numbers::pi;
  for (int i = 0; i < 8; ++i) {
    const double wave = two_pi / plain(i);
    const double got = freqs[static_cast<size_t>(i)] / plain(i);
    if (wave < 16) {
      EXPECT_DOUBLE_EQ(got, 1) << i;
    } else if (wave > 64) {
      EXPECT_DOUBLE_EQ(got, 1.0 / 8) << i;
    } else {
      const double smooth = (64 / wave - 1) / 3;
      EXPECT_NEAR(got, (1 - smooth) / 8 + smooth, 1e-15) << i;
      EXPECT_GT(got, 1.0 / 8) << i;
      EXPECT_LT(got, 1) << i;
    }
  }
}

TEST(Rope, YarnRampsFromKeptToStretched) {
  RopeYarn yarn;
  yarn.factor = 4;
  yarn.attention_factor = 1.25;
  yarn.original_max_positions = 4096;
  const RopeSpec rope = rope_of(yarn, 128);
  const auto freqs = rope_frequencies(rope, 100);
  // 128 * ln(4096 / (32 * 2 pi)) / (2 ln 10000) = 20.9..., for beta_slow = 1 it is 45.03...
  EXPECT_DOUBLE_EQ(freqs[20], plain(20, 128));
  EXPECT_LT(freqs[21], plain(21, 128));
  EXPECT_GT(freqs[45], plain(45, 128) / 4);
  EXPECT_DOUBLE_EQ(freqs[46], plain(46, 128) / 4);
  EXPECT_DOUBLE_EQ(rope_attention_factor(rope), 1.25);
}

TEST(Rope, LongPicksItsFactorsByTheLongestSequence) {
  RopeLong scaling;
  scaling.short_factor = {1, 1, 1, 1, 1, 1, 1, 2};
  scaling.long_factor = {1, 2, 3, 4, 5, 6, 7, 8};
  scaling.original_max_positions = 64;
  scaling.attention_factor = 1.5;
  const RopeSpec rope = rope_of(scaling);
  EXPECT_DOUBLE_EQ(rope_frequencies(rope, 64)[7], plain(7) / 2);
  EXPECT_DOUBLE_EQ(rope_frequencies(rope, 65)[7], plain(7) / 8);
}

// theta^(-2i / head_dim) of the whole head for the first quarter of the pairs, 0 for the others.
TEST(Rope, ProportionalTurnsTheFirstPairs) {
  RopeSpec rope{.theta = 1e6, .rotary_dim = 16, .scaling = RopeProportional{.part = 0.25}};
  const std::vector<double> f = rope_frequencies(rope, 100);
  ASSERT_EQ(f.size(), 8U);
  EXPECT_EQ(f[0], 1);
  EXPECT_DOUBLE_EQ(f[1], std::pow(1e6, -2.0 / 16));
  for (size_t i = 2; i < 8; ++i) EXPECT_EQ(f[i], 0) << i;
  rope.scaling = RopeProportional{.part = 0.25, .factor = 4};
  EXPECT_DOUBLE_EQ(rope_frequencies(rope, 100)[1], f[1] / 4);
}

TEST(Rope, TableHoldsScaledCosThenSin) {
  RopeLong scaling;
  scaling.short_factor = scaling.long_factor = {1, 2};
  scaling.attention_factor = 1.5;
  scaling.original_max_positions = 8;
  const auto table = rope_table(rope_of(scaling, 4), 3);
  ASSERT_EQ(table.size(), 3u * 4);
  const double f1 = plain(1, 4) / 2;
  EXPECT_FLOAT_EQ(table[0], 1.5f);
  EXPECT_FLOAT_EQ(table[2], 0.0f);
  EXPECT_FLOAT_EQ(table[8], static_cast<float>(1.5 * std::cos(2.0)));
  EXPECT_FLOAT_EQ(table[9], static_cast<float>(1.5 * std::cos(2 * f1)));
  EXPECT_FLOAT_EQ(table[10], static_cast<float>(1.5 * std::sin(2.0)));
  EXPECT_FLOAT_EQ(table[11], static_cast<float>(1.5 * std::sin(2 * f1)));
}

}  // namespace
}  // namespace rudder::model
