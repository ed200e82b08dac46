#include "rudder/base/exact_json.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>

namespace rudder {
namespace {

TEST(ExactJson, NumbersLoseNoDigit) {
  const auto written = [](std::string_view text) {
    const auto value = parse_json_exactly(text, "test");
    EXPECT_TRUE(value) << text;
    return value ? to_json_text(*value) : "";
  };
  EXPECT_EQ(written("[9007199254740993,18446744073709551617,0.1,1e400,2.50,1e0,-0.0]"),
            "[9007199254740993,18446744073709551617,0.1,1e400,2.5,1,0]");
  EXPECT_EQ(written(R"({"a":"0.5","b":{"c":[0.5]}})"), R"({"a":"0.5","b":{"c":[0.5]}})");
  EXPECT_EQ(written("0.12345678901234567890123"), "0.12345678901234567890123");
  EXPECT_EQ(written("  7.5 "), "7.5");
  const auto value = parse_json_exactly(R"([0.5,"0.5",7,true])", "test");
  ASSERT_TRUE(value);
  EXPECT_TRUE(is_number(value->at(0)) && !is_string(value->at(0)));
  EXPECT_TRUE(!is_number(value->at(1)) && is_string(value->at(1)));
  EXPECT_EQ(decimal_of(value->at(0)), Decimal::read("0.5"));
  EXPECT_EQ(decimal_of(value->at(2)), Decimal(7));
  EXPECT_EQ(with_doubles(*value), boost::json::parse(R"([0.5,"0.5",7,true])"));
}

TEST(ExactJson, IsAsStrictAsTheOther) {
  for (const char* text : {"", "[1,]", "{\"a\":1,}", "1 2", "[1] x", "\"\xFF\"",
                           "\"\xFF"
                           "1\"",
                           "01", "+1", "[.5]", "nan", "[1"}) {
    EXPECT_FALSE(parse_json_exactly(text, "test")) << text;
    EXPECT_FALSE(parse_json(text, "test")) << text;
  }
  EXPECT_FALSE(parse_json_exactly(std::string(70, '[') + std::string(70, ']'), "test"));
  EXPECT_EQ(parse_json_exactly(R"({"a":1,"a":2})", "test")->at("a"), 2);
}

// Elsewhere numbers are as the other parser has them, and so are those that a double says.
TEST(ExactJson, KeepsThemInSomeFields) {
  constexpr std::string_view kFields[] = {"tools", "text"};
  const std::string body =
      R"({"temperature":0.12345678901234567890,"tools":[{"schema":{"minimum":1e400,"maximum":0.3,)"
      R"("multipleOf":0.10000000000000000001,"big":18446744073709551615}}],"other":{"tools":1e400}})";
  const auto value = parse_json_exactly_in(kFields, body, "test");
  ASSERT_TRUE(value);
  EXPECT_TRUE(value->at("temperature").is_double());
  EXPECT_TRUE(value->at("other").at("tools").is_double());
  const boost::json::value& schema = value->at("tools").at(0).at("schema");
  EXPECT_EQ(schema.at("maximum"), 0.3);
  EXPECT_EQ(to_json_text(schema),
            R"({"minimum":1e400,"maximum":3E-1,"multipleOf":0.10000000000000000001,)"
            R"("big":18446744073709551615})");
}

}  // namespace
}  // namespace rudder
