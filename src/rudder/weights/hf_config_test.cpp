#include "rudder/weights/hf_config.h"

#include <gtest/gtest.h>

namespace rudder::weights {
namespace {

HfConfig config(std::string_view text) {
  auto out = HfConfig::parse(text, "config.json");
  EXPECT_TRUE(out) << out.error().to_string();
  return *out;
}

TEST(HfConfig, ReadsTypedFields) {
  const HfConfig c = config(
      R"({"n": 3, "f": 1e-5, "whole": 4096.0, "b": true, "s": "x", "list": [1, 2.5],
          "names": ["p", "q"], "one": 2, "many": [2, 3], "null": null})");
  EXPECT_EQ(*c.integer("n", 1), 3);
  EXPECT_EQ(*c.integer("whole", 1), 4096);
  EXPECT_EQ(*c.number("f"), 1e-5);
  EXPECT_EQ(*c.number("n"), 3.0);
  EXPECT_TRUE(*c.boolean("b"));
  EXPECT_EQ(*c.string("s"), "x");
  EXPECT_EQ(*c.numbers("list"), (std::vector<double>{1, 2.5}));
  EXPECT_EQ(*c.strings("names"), (std::vector<std::string>{"p", "q"}));
  EXPECT_EQ(*c.integers("one", 0, 9), (std::vector<int64_t>{2}));
  EXPECT_EQ(*c.integers("many", 0, 9), (std::vector<int64_t>{2, 3}));
  EXPECT_FALSE(c.has("null"));
  EXPECT_EQ(*c.integer_or("null", 7, 0), 7);
  EXPECT_EQ(*c.number_or("absent", 0.5), 0.5);
  EXPECT_EQ(*c.string_or("absent", "d"), "d");
  EXPECT_FALSE(*c.boolean_or("absent", false));
}

TEST(HfConfig, ErrorsNameTheKey) {
  const HfConfig c = config(R"({"s": "x", "n": -1, "big": 1e300, "rope": {"factor": "2"}})");
  const auto check = [](const auto& result, std::string_view where) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::kCorruptFile);
    EXPECT_EQ(result.error().where, where) << result.error().to_string();
  };
  check(c.integer("hidden_size", 1), "config.json: hidden_size");
  check(c.integer("s", 1), "config.json: s");
  check(c.integer("n", 0), "config.json: n");
  check(c.integer("big", 0), "config.json: big");
  check(c.integer_or("s", 1, 0), "config.json: s");
  check(c.boolean("n"), "config.json: n");
  check(c.strings("s"), "config.json: s");
  check(c.numbers("s"), "config.json: s");
  check(c.object("s"), "config.json: s");
  const auto rope = c.object("rope");
  ASSERT_TRUE(rope);
  check(rope->number("factor"), "config.json: rope.factor");
  check(rope->number("base"), "config.json: rope.base");
}

TEST(HfConfig, RemembersWhatWasAskedFor) {
  const auto parsed = HfConfig::parse(
      R"({"a": 1, "b": null, "c": 2, "rope": {"x": 1, "y": 2}, "text": {"a": 1}})", "config.json");
  const HfConfig copy = parsed->with_defaults(R"({"d": 3})");
  EXPECT_TRUE(copy.has("a"));
  const auto rope = copy.object("rope");
  EXPECT_TRUE(rope->integer("x", 0));
  EXPECT_TRUE(parsed->integer_or("missing", 1, 0));
  using Keys = std::vector<std::string>;
  EXPECT_EQ(parsed->unread_keys(), (Keys{"c", "text"}));
  EXPECT_EQ(rope->unread_keys(), (Keys{"y"}));
  EXPECT_EQ(parsed->object("text")->unread_keys(), (Keys{"a"}));
}

TEST(HfConfig, DefaultsGoOverNullsOrStayBehindThem) {
  const auto parsed = HfConfig::parse(R"({"a": 1, "b": null})", "config.json");
  const auto defaults = HfConfig::parse(R"({"a": 2, "b": 3, "c": 4})", "defaults");
  for (const bool over_nulls : {true, false}) {
    const HfConfig whole =
        over_nulls ? parsed->with_defaults(*defaults) : parsed->with_missing(*defaults);
    EXPECT_EQ(*whole.integer("a", 0), 1);
    EXPECT_EQ(*whole.integer("c", 0), 4);
    EXPECT_EQ(whole.has("b"), over_nulls);
    EXPECT_EQ(whole.is_null("b"), !over_nulls);
  }
  EXPECT_FALSE(parsed->is_null("c"));
}

TEST(HfConfig, RefusesWhatIsNoObject) {
  for (const char* text : {"", "[]", "3", "{", "{}x", "{\"a\": NaN}", "\xff"}) {
    const auto out = HfConfig::parse(text, "config.json");
    ASSERT_FALSE(out) << text;
    EXPECT_EQ(out.error().code, ErrorCode::kCorruptFile);
    EXPECT_EQ(out.error().where, "config.json");
  }
}

}  // namespace
}  // namespace rudder::weights
