#include <gtest/gtest.h>

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

}  // namespace
}  // namespace rudder::tensor
