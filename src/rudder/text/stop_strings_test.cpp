#include "rudder/text/stop_strings.h"

#include <gtest/gtest.h>

#include <random>

namespace rudder::text {
namespace {

std::shared_ptr<const StopSet> compile(std::vector<std::string> strings) {
  auto set = StopSet::compile(std::move(strings));
  EXPECT_TRUE(set.has_value());
  return *set;
}

TEST(StopStrings, MatchesAcrossDeltas) {
  StopMatcher matcher(compile({"</s>", "User:"}), false);
  EXPECT_EQ(matcher.push("Hello <"), "Hello ");
  EXPECT_EQ(matcher.push("/"), "");
  EXPECT_EQ(matcher.push("b> Us"), "</b> ");
  EXPECT_EQ(matcher.push("er: more"), "");
  ASSERT_TRUE(matcher.match().has_value());
  EXPECT_EQ(matcher.match()->index, 1u);
  EXPECT_EQ(matcher.match()->offset, 11u);
  EXPECT_EQ(matcher.push("later"), "");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopStrings, IncludesTheStopWhenAsked) {
  StopMatcher matcher(compile({"END"}), true);
  EXPECT_EQ(matcher.push("abcE"), "abc");
  EXPECT_EQ(matcher.push("NDxyz"), "END");
}

TEST(StopStrings, FlushGivesBackWhatWasHeld) {
  StopMatcher matcher(compile({"abcd"}), false);
  EXPECT_EQ(matcher.push("xabc"), "x");
  EXPECT_EQ(matcher.flush(), "abc");
  EXPECT_FALSE(matcher.match().has_value());
}

TEST(StopStrings, NoStopsHoldNothing) {
  StopMatcher matcher(nullptr, false);
  EXPECT_EQ(matcher.push("anything"), "anything");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopStrings, TheLongestOfThoseThatEndTogetherWins) {
  StopMatcher matcher(compile({"b", "ab", "xab"}), false);
  EXPECT_EQ(matcher.push("yxab"), "y");
  EXPECT_EQ(matcher.match()->index, 2u);
}

TEST(StopStrings, LimitsAreNamed) {
  const auto empty = StopSet::compile({"a", ""});
  ASSERT_FALSE(empty.has_value());
  EXPECT_EQ(empty.error().where, "stop[1]");
  EXPECT_EQ(empty.error().code, ErrorCode::kInvalidArgument);
  EXPECT_FALSE(StopSet::compile(std::vector<std::string>(65, "a")).has_value());
  EXPECT_FALSE(StopSet::compile({std::string(8193, 'a')}).has_value());
}

// Against a search of the whole text: same first match, same emitted text, and after each push
// exactly the longest suffix that begins some stop string is held back.
TEST(StopStrings, EqualsBruteForce) {
  std::mt19937 rng(5);
  const auto word = [&rng](size_t longest) {
    std::string text;
    for (size_t n = 1 + rng() % longest; n > 0; --n) text.push_back("ab c"[rng() % 4]);
    return text;
  };
  for (int round = 0; round < 4000; ++round) {
    std::vector<std::string> stops;
    for (size_t n = 1 + rng() % 4; n > 0; --n) stops.push_back(word(5));
    const bool include = rng() % 2 == 0;
    StopMatcher matcher(compile(stops), include);
    std::string text, emitted;
    for (size_t n = rng() % 8; n > 0; --n) {
      const std::string delta = word(4);
      text += delta;
      emitted += matcher.push(delta);
      if (matcher.match()) break;
      size_t held = 0;
      for (const std::string& stop : stops) {
        for (size_t size = 1; size < stop.size() && size <= text.size(); ++size) {
          if (text.ends_with(stop.substr(0, size))) held = std::max(held, size);
        }
      }
      ASSERT_EQ(emitted, text.substr(0, text.size() - held));
    }
    emitted += matcher.flush();
    size_t end = std::string::npos, length = 0;
    for (const std::string& stop : stops) {
      const size_t at = text.find(stop);
      if (at == std::string::npos) continue;
      if (at + stop.size() < end || (at + stop.size() == end && stop.size() > length)) {
        end = at + stop.size();
        length = stop.size();
      }
    }
    ASSERT_EQ(matcher.match().has_value(), end != std::string::npos) << text;
    if (end == std::string::npos) {
      EXPECT_EQ(emitted, text);
    } else {
      EXPECT_EQ(matcher.match()->offset, end - length);
      EXPECT_EQ(emitted, text.substr(0, include ? end : end - length));
    }
  }
}

}  // namespace
}  // namespace rudder::text
