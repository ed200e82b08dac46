#include "rudder/base/json.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>

namespace rudder {
namespace {

std::string written(std::string_view text) {
  const auto value = parse_json(text, "test");
  EXPECT_TRUE(value.has_value()) << text;
  return to_json_text(*value);
}

TEST(Json, NumbersBeyondDoublesAreWrittenAsNumbers) {
  EXPECT_EQ(written("1e400"), "1e999");
  EXPECT_EQ(written(R"({"a":[1,-1e400,{"b":1e999}]})"), R"({"a":[1,-1e999,{"b":1e999}]})");
  EXPECT_EQ(written(written("[1e400]")), "[1e999]");
}

TEST(Json, ZerosOfAnyExponentAreZero) {
  for (const char* text : {"0e616", "-0e999", "0.000E+400", "0e-999", "0E309"}) {
    const auto value = parse_json(text, "test");
    ASSERT_TRUE(value && value->is_number()) << text;
    EXPECT_EQ(value->to_number<double>(), 0) << text;
  }
  EXPECT_EQ(parse_json(R"({"a":[{"b":0e400}]})", "test")->at("a").at(0).at("b"), 0.0);
}

TEST(Json, StringsAreWrittenAsTheyAre) {
  const std::string_view texts[] = {R"(["Infinity",1])", R"({"Infinity":"a\"Infinity\\"})",
                                    R"("\\\"-Infinity")"};
  for (const std::string_view text : texts) EXPECT_EQ(written(text), text);
  EXPECT_EQ(written(R"(["\\Infinity\\",1e400,"Infinity"])"),
            R"(["\\Infinity\\",1e999,"Infinity"])");
}

}  // namespace
}  // namespace rudder
