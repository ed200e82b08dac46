#include "rudder/hub/hub_answers.h"

#include <gtest/gtest.h>

namespace rudder::hub {
namespace {

constexpr int64_t kMicrosecondsInOne = 1'000'000;
constexpr int64_t kNow = 784'111'777;  // Sun, 06 Nov 1994 08:49:37 GMT

std::optional<int64_t> seconds_of(const char* name, const char* text, int status = 429) {
  HttpHead head;
  head.status = status;
  head.fields = {{name, text}};
  const auto wait_us = wait_us_of(head, kNow);
  return wait_us ? std::optional<int64_t>(*wait_us / kMicrosecondsInOne) : std::nullopt;
}

TEST(HubAnswers, AWaitIsANumberOrADate) {
  constexpr int64_t kDay = 24 * 3600;
  EXPECT_EQ(seconds_of("retry-after", "7"), 7);
  EXPECT_EQ(seconds_of("retry-after", "0"), 0);
  EXPECT_EQ(seconds_of("retry-after", "7.9"), 7);
  EXPECT_EQ(seconds_of("retry-after", "99999999"), kDay);
  EXPECT_EQ(seconds_of("retry-after", "99999999999999999999"), kDay);
  EXPECT_EQ(seconds_of("retry-after", "Sun, 06 Nov 1994 08:50:07 GMT"), 30);
  EXPECT_EQ(seconds_of("retry-after", "Sun, 06 Nov 1994 08:00:00 GMT"), 0);
  EXPECT_EQ(seconds_of("retry-after", "Sun, 06 Nov 2094 08:49:37 GMT"), kDay);
  for (const char* wrong : {"-1", "-99999999999999999999", "soon", "Sun, 06 Nov", ""}) {
    EXPECT_EQ(seconds_of("retry-after", wrong), std::nullopt) << wrong;
  }
}

TEST(HubAnswers, AWaitIsALimitsReset) {
  EXPECT_EQ(seconds_of("ratelimit", "\"api\";r=0;t=55"), 55);
  EXPECT_EQ(seconds_of("ratelimit", "\"api\"; t=55; r=0"), 55);
  EXPECT_EQ(seconds_of("ratelimit", "\"api\";r=0;t=55", 200), std::nullopt);
  for (const char* wrong : {"\"api\";r=0", ";", "t", "\"api\";t=", ";;;", "limit=10, reset=5"}) {
    EXPECT_EQ(seconds_of("ratelimit", wrong), std::nullopt) << wrong;
  }
}

}  // namespace
}  // namespace rudder::hub
