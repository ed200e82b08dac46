#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "rudder/tensor/dtype.h"

namespace rudder::tensor {
namespace {

TEST(BF16, EveryValueRoundTrips) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const BF16 value{static_cast<uint16_t>(bits)};
    const float wide = to_float(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(to_float(to_bf16(wide))));
    } else {
      ASSERT_EQ(to_bf16(wide).bits, value.bits);
    }
  }
}

TEST(BF16, TiesGoToEven) {
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f808001u)).bits, 0x3f81);
}

TEST(F16, EveryValueRoundTrips) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const F16 value{static_cast<uint16_t>(bits)};
    const float wide = to_float(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(to_float(to_f16(wide))));
    } else {
      ASSERT_EQ(to_f16(wide).bits, value.bits) << bits;
    }
  }
}

TEST(F16, RoundsAndOverflows) {
  EXPECT_EQ(to_f16(65519.0f).bits, 0x7bff);
  EXPECT_EQ(to_f16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(to_f16(1.0f + 0x1.0p-11f).bits, 0x3c00);
  EXPECT_EQ(to_f16(1.0f + 0x1.8p-10f).bits, 0x3c02);
}

TEST(F8E4M3, EveryValueRoundTrips) {
  for (uint32_t bits = 0; bits <= 0xff; ++bits) {
    const F8E4M3 value{static_cast<uint8_t>(bits)};
    const float wide = to_float(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(to_float(to_f8e4m3(wide))));
    } else {
      ASSERT_EQ(to_f8e4m3(wide).bits, value.bits) << bits;
    }
  }
}

TEST(F8E4M3, RoundsToTheNearestAndTiesToEven) {
  // Halfway between neighbours, and a little to each side of it, through all positive values.
  for (uint8_t bits = 0; bits < 0x7e; ++bits) {
    const float low = to_float(F8E4M3{bits});
    const float high = to_float(F8E4M3{static_cast<uint8_t>(bits + 1)});
    const float middle = (low + high) / 2;
    EXPECT_EQ(to_f8e4m3(middle).bits, bits % 2 == 0 ? bits : bits + 1);
    EXPECT_EQ(to_f8e4m3(std::nextafter(middle, 0.0f)).bits, bits);
    EXPECT_EQ(to_f8e4m3(-std::nextafter(middle, 500.0f)).bits, (bits + 1) | 0x80);
  }
}

TEST(F8E4M3, SaturatesAndKeepsNaN) {
  EXPECT_EQ(to_float(to_f8e4m3(1e9f)), kMaxF8E4M3);
  EXPECT_EQ(to_float(to_f8e4m3(-std::numeric_limits<float>::infinity())), -kMaxF8E4M3);
  EXPECT_TRUE(std::isnan(to_float(to_f8e4m3(std::numeric_limits<float>::quiet_NaN()))));
}

}  // namespace
}  // namespace rudder::tensor
