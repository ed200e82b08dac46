#include "rudder/base/decimal.h"

#include <gtest/gtest.h>

namespace rudder {
namespace {

Decimal number(std::string_view text) {
  const std::optional<Decimal> read = Decimal::read(text);
  EXPECT_TRUE(read) << text;
  return read.value_or(Decimal());
}

TEST(Decimal, IsOneValueHoweverItIsWritten) {
  for (const char* text : {"0", "-0", "0.000", "-0e999999999999", "0E-5"}) {
    EXPECT_EQ(number(text), Decimal()) << text;
    EXPECT_EQ(number(text).text(), "0");
  }
  EXPECT_EQ(number("1e0"), number("0.10E+1"));
  EXPECT_EQ(number("-12.50"), number("-1250e-2"));
  EXPECT_EQ(number("9007199254740993").text(), "9007199254740993");
  EXPECT_EQ(number("1.7976931348623157e308").text(), "1.7976931348623157e308");
  EXPECT_EQ(number("-0.00025").text(), "-0.00025");
  EXPECT_EQ(number("5e-324").text(), "5e-324");
  EXPECT_FALSE(Decimal::read("1e9999999"));
  EXPECT_FALSE(Decimal::read("1e-99999999999999999999"));
  for (const char* text : {"", "-", ".5", "1.", "1e", "1e+", "0x1", "1 ", "--1"}) {
    EXPECT_FALSE(Decimal::read(text)) << text;
  }
}

TEST(Decimal, IsOrdered) {
  const char* ordered[] = {"-1e308",
                           "-1.5",
                           "-1.4999",
                           "-1e-9",
                           "0",
                           "5e-324",
                           "0.0001",
                           "0.1",
                           "0.10000000000000000001",
                           "1",
                           "9007199254740992",
                           "9007199254740993",
                           "1e18",
                           "1e308"};
  for (size_t i = 0; i < std::size(ordered); ++i) {
    for (size_t k = 0; k < std::size(ordered); ++k) {
      EXPECT_EQ(number(ordered[i]) <=> number(ordered[k]), i <=> k) << ordered[i] << ordered[k];
    }
  }
}

TEST(Decimal, WholeNumbersAroundIt) {
  EXPECT_EQ(number("-1.5").floor(), number("-2"));
  EXPECT_EQ(number("-1.5").ceil(), number("-1"));
  EXPECT_EQ(number("0.5").floor(), Decimal());
  EXPECT_EQ(number("-0.5").ceil(), Decimal());
  EXPECT_EQ(number("999.01").ceil(), number("1000"));
  EXPECT_EQ(number("-1").plus_one(), Decimal());
  EXPECT_EQ(number("0").minus_one(), number("-1"));
  EXPECT_EQ(number("1e20").minus_one(), number("99999999999999999999"));
  EXPECT_EQ(number("-100").plus_one(), number("-99"));
  EXPECT_EQ(number("9223372036854775807").to_int64(), INT64_MAX);
  EXPECT_EQ(number("-9223372036854775808").to_int64(), INT64_MIN);
  EXPECT_EQ(number("9223372036854775808").to_int64(), std::nullopt);
  EXPECT_EQ(number("0.5").to_int64(), std::nullopt);
  EXPECT_EQ(Decimal(INT64_MIN), number("-9223372036854775808"));
}

}  // namespace
}  // namespace rudder
