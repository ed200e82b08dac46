#include "rudder/server/steering/steered_tokens.h"

#include <gtest/gtest.h>

namespace rudder::server {
namespace {

constexpr tap::ContentKey kSome{1, 2};
constexpr tap::ContentKey kOther{3, 4};

TEST(SteeredTokens, EndWithTheLastTokenThatRan) {
  tap::TapsSpec taps;
  taps.segments = {{0, {}}, {2, kSome}, {4, kOther}, {6, {}}, {9, kSome}};
  SteeredTokens steered(taps, 8);
  EXPECT_EQ(to_json(steered.ranges()), "[[2,6]]");
  steered.note(5);
  EXPECT_EQ(to_json(steered.ranges()), "[[2,6]]");  // it was sampled, and did not run
  steered.note(5);
  steered.note(5);
  steered.note(5);
  EXPECT_EQ(to_json(steered.ranges()), "[[2,6],[9,11]]");
}

TEST(SteeredTokens, NoSteering) {
  SteeredTokens steered({}, 3);
  steered.note(1);
  steered.note(1);
  EXPECT_EQ(to_json(steered.ranges()), "[]");
}

// Thoughts alone are steered: the marks 7 and 8 are not among them.
TEST(SteeredTokens, Thoughts) {
  tap::TapsSpec taps;
  taps.segments = {{0, {}}};
  taps.thoughts = tap::ThoughtsSpec{.begin_token = 7, .end_token = 8, .segments = {{0, kSome}}};
  SteeredTokens steered(taps, 2);
  for (const int32_t token : {7, 1, 1, 8, 1, 7, 1}) steered.note(token);
  EXPECT_EQ(to_json(steered.ranges()), "[[3,5]]");

  SteeredTokens plain(taps, 2);
  for (const int32_t token : {1, 7, 1, 8, 1}) plain.note(token);
  EXPECT_EQ(to_json(plain.ranges()), "[]");

  taps.thoughts->open = true;
  SteeredTokens open(taps, 2);
  for (const int32_t token : {1, 1}) open.note(token);
  EXPECT_EQ(to_json(open.ranges()), "[[2,3]]");
}

}  // namespace
}  // namespace rudder::server
