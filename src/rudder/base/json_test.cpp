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

TEST(Json, StringsAreWrittenAsTheyAre) {
  const std::string_view texts[] = {R"(["Infinity",1])", R"({"Infinity":"a\"Infinity\\"})",
                                    R"("\\\"-Infinity")"};
  for (const std::string_view text : texts) EXPECT_EQ(written(text), text);
  EXPECT_EQ(written(R"(["\\Infinity\\",1e400,"Infinity"])"),
            R"(["\\Infinity\\",1e999,"Infinity"])");
}

}  // namespace
}  // namespace rudder
