#include "eval/text_windows.h"

#include <gtest/gtest.h>

namespace rudder::apps {
namespace {

using Prefix = TextWindow::Prefix;

std::vector<TextWindow> windows_of(int32_t num_tokens, const WindowSettings& settings,
                                   bool has_prefix) {
  const auto windows = make_windows(num_tokens, settings, has_prefix);
  EXPECT_TRUE(windows) << windows.error().message;
  return windows.value_or(std::vector<TextWindow>());
}

std::vector<int32_t> scored_positions(const std::vector<TextWindow>& windows) {
  std::vector<int32_t> positions;
  for (const TextWindow& window : windows) {
    EXPECT_LE(window.begin, window.first_scored);
    for (int32_t i = window.first_scored; i < window.end; ++i) positions.push_back(i);
  }
  return positions;
}

// The example of lm-evaluation-harness: ten tokens, at most four of input.
TEST(TextWindows, RollingIsThatOfTheHarness) {
  const auto windows = windows_of(10, {.kind = WindowKind::kRolling, .window = 4}, true);
  const std::vector<TextWindow> expected = {
      {.begin = 0, .end = 4, .first_scored = 0, .prefix = Prefix::kBefore},
      {.begin = 3, .end = 8, .first_scored = 4},
      {.begin = 5, .end = 10, .first_scored = 8}};
  EXPECT_EQ(windows, expected);
}

TEST(TextWindows, RollingScoresEachTokenOnceWithAtMostAWindowBeforeIt) {
  for (int32_t num_tokens = 2; num_tokens < 60; ++num_tokens) {
    for (int32_t window = 4; window < 23; ++window) {
      for (const bool has_prefix : {false, true}) {
        const auto windows =
            windows_of(num_tokens, {.kind = WindowKind::kRolling, .window = window}, has_prefix);
        const std::vector<int32_t> positions = scored_positions(windows);
        ASSERT_EQ(std::ssize(positions), num_tokens - (has_prefix ? 0 : 1));
        for (size_t i = 0; i < positions.size(); ++i) {
          ASSERT_EQ(positions[i], static_cast<int32_t>(i) + (has_prefix ? 0 : 1));
        }
        for (const TextWindow& one : windows) ASSERT_LE(one.prompt_tokens(), window + 1);
      }
    }
  }
}

// n_ctx / 2 - 1 tokens of each whole window, as llama.cpp counts them.
TEST(TextWindows, HalvesAreThoseOfLlamaCpp) {
  const auto windows = windows_of(29, {.kind = WindowKind::kHalves, .window = 9}, true);
  const std::vector<TextWindow> expected = {
      {.begin = 0, .end = 9, .first_scored = 5, .prefix = Prefix::kInPlaceOfFirst},
      {.begin = 9, .end = 18, .first_scored = 14, .prefix = Prefix::kInPlaceOfFirst},
      {.begin = 18, .end = 27, .first_scored = 23, .prefix = Prefix::kInPlaceOfFirst}};
  EXPECT_EQ(windows, expected);
  EXPECT_EQ(windows_of(29, {.kind = WindowKind::kHalves, .window = 9}, false)[1].prefix,
            Prefix::kNone);
}

TEST(TextWindows, StridedScoresEachTokenButTheFirstOnce) {
  for (int32_t num_tokens = 2; num_tokens < 50; ++num_tokens) {
    for (int32_t window = 4; window < 13; ++window) {
      for (int32_t stride = 1; stride < window; ++stride) {
        const auto windows = windows_of(
            num_tokens, {.kind = WindowKind::kStrided, .window = window, .stride = stride}, false);
        const std::vector<int32_t> positions = scored_positions(windows);
        ASSERT_EQ(std::ssize(positions), num_tokens - 1);
        for (size_t i = 0; i < positions.size(); ++i) {
          ASSERT_EQ(positions[i], static_cast<int32_t>(i) + 1);
        }
        for (size_t i = 0; i < windows.size(); ++i) {
          ASSERT_EQ(windows[i].begin, static_cast<int32_t>(i) * stride);
          ASSERT_LT(windows[i].begin, windows[i].first_scored);  // a token of context
        }
      }
    }
  }
}

TEST(TextWindows, WhatCannotBeIsRefusedByField) {
  const auto refused = [](int32_t num_tokens, const WindowSettings& settings) {
    const auto windows = make_windows(num_tokens, settings, true);
    return windows ? "" : windows.error().where;
  };
  EXPECT_EQ(refused(99, {.kind = WindowKind::kRolling, .window = 3}), "window");
  EXPECT_EQ(refused(99, {.kind = WindowKind::kRolling, .window = 7, .stride = 2}), "stride");
  EXPECT_EQ(refused(99, {.kind = WindowKind::kStrided, .window = 7, .stride = 0}), "stride");
  EXPECT_EQ(refused(99, {.kind = WindowKind::kStrided, .window = 7, .stride = 7}), "stride");
  EXPECT_EQ(refused(1, {.kind = WindowKind::kRolling, .window = 7}), "tokens");
  EXPECT_EQ(refused(16, {.kind = WindowKind::kHalves, .window = 17}), "tokens");
  EXPECT_EQ(parse_window_kind("half").error().where, "windows");
}

}  // namespace
}  // namespace rudder::apps
