#include "eval/text_windows.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace rudder::apps {
namespace {

constexpr std::array<std::pair<WindowKind, std::string_view>, 3> kWindowKinds = {{
    {WindowKind::kRolling, "rolling"},
    {WindowKind::kHalves, "halves"},
    {WindowKind::kStrided, "strided"},
}};

std::vector<TextWindow> rolling_windows(int32_t num_tokens, int32_t window, bool has_prefix) {
  using Prefix = TextWindow::Prefix;
  const int32_t first_end = std::min(num_tokens, window);
  std::vector<TextWindow> windows = {{.begin = 0,
                                      .end = first_end,
                                      .first_scored = has_prefix ? 0 : 1,
                                      .prefix = has_prefix ? Prefix::kBefore : Prefix::kNone}};
  for (int32_t scored = first_end; scored < num_tokens;) {
    const int32_t end = std::min(num_tokens, scored + window);
    windows.push_back({.begin = end - window - 1, .end = end, .first_scored = scored});
    scored = end;
  }
  return windows;
}

std::vector<TextWindow> half_windows(int32_t num_tokens, int32_t window, bool has_prefix) {
  using Prefix = TextWindow::Prefix;
  std::vector<TextWindow> windows;
  for (int32_t begin = 0; begin + window <= num_tokens; begin += window) {
    windows.push_back({.begin = begin,
                       .end = begin + window,
                       .first_scored = begin + window / 2 + 1,
                       .prefix = has_prefix ? Prefix::kInPlaceOfFirst : Prefix::kNone});
  }
  return windows;
}

std::vector<TextWindow> strided_windows(int32_t num_tokens, const WindowSettings& settings) {
  std::vector<TextWindow> windows;
  int32_t scored = 1;
  for (int32_t begin = 0; scored < num_tokens; begin += settings.stride) {
    const int32_t end = std::min(num_tokens, begin + settings.window);
    windows.push_back({.begin = begin, .end = end, .first_scored = scored});
    scored = end;
  }
  return windows;
}

Result<void> check_range(const char* field, int32_t value, int32_t least, int32_t most) {
  if (value >= least && value <= most) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("must be {} to {} here, got {}", least, most, value), field);
}

}  // namespace

std::string_view window_kind_name(WindowKind kind) {
  return std::ranges::find(kWindowKinds, kind, &std::pair<WindowKind, std::string_view>::first)
      ->second;
}

Result<WindowKind> parse_window_kind(std::string_view name) {
  for (const auto& [kind, spelling] : kWindowKinds) {
    if (spelling == name) return kind;
  }
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("must be rolling, halves or strided, got '{}'", name), "windows");
}

Result<std::vector<TextWindow>> make_windows(int32_t num_tokens, const WindowSettings& settings,
                                             bool has_prefix) {
  constexpr int32_t kLeastWindow = 4;  // a half of it scores a token
  constexpr int32_t kMostWindow = 1 << 24;
  constexpr int32_t kMostTokens = 1 << 30;
  const bool is_strided = settings.kind == WindowKind::kStrided;
  RUDDER_TRY_VOID(check_range("window", settings.window, kLeastWindow, kMostWindow));
  // A window has a token of context for the first token that it scores.
  RUDDER_TRY_VOID(check_range("stride", settings.stride, is_strided ? 1 : 0,
                              is_strided ? settings.window - 1 : 0));
  const int32_t least_tokens = settings.kind == WindowKind::kHalves ? settings.window : 2;
  if (num_tokens < least_tokens || num_tokens > kMostTokens) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the text has {} tokens; {} to {} can be scored so", num_tokens,
                            least_tokens, kMostTokens),
                "tokens");
  }
  switch (settings.kind) {
    case WindowKind::kRolling:
      return rolling_windows(num_tokens, settings.window, has_prefix);
    case WindowKind::kHalves:
      return half_windows(num_tokens, settings.window, has_prefix);
    case WindowKind::kStrided:
      return strided_windows(num_tokens, settings);
  }
  return fail(ErrorCode::kInternal, "unknown kind of window");
}

}  // namespace rudder::apps
