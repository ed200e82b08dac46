#include "bench/decode_window.h"

#include <gtest/gtest.h>

namespace rudder::apps {
namespace {

using Times = std::vector<int64_t>;

TEST(DecodeWindow, PromptsOfOthersAreOutsideOfIt) {
  // The second prompt runs for a second while the first sequence waits for its tokens.
  const Times first = {0, 500'000, 1'000'000, 1'010'000, 1'020'000, 1'030'000};
  const Times second = {1'000'000, 1'010'000, 1'020'000, 1'030'000, 1'040'000};
  const DecodeWindow window = decode_window({first, second});
  EXPECT_DOUBLE_EQ(window.seconds, 0.03);
  EXPECT_EQ(window.tokens, 6);
  EXPECT_DOUBLE_EQ(window.per_token(2), 0.01);
}

TEST(DecodeWindow, IsEmptyWhereOneEndsBeforeAnotherBegins) {
  const Times first = {0, 10};
  const Times second = {20, 30};
  EXPECT_EQ(decode_window({first, second}).tokens, 0);
  EXPECT_EQ(decode_window({first, second}).per_token(2), 0);
}

}  // namespace
}  // namespace rudder::apps
