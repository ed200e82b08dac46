#include "rudder/steer/selector.h"

#include <algorithm>
#include <array>

namespace rudder::steer {
namespace {

using Ranges = std::vector<tap::PositionRange>;

// Sorted, overlapping and adjacent ranges joined, empty ones dropped.
Ranges normalised(Ranges ranges) {
  std::erase_if(ranges, [](const tap::PositionRange& range) { return range.begin >= range.end; });
  std::ranges::sort(ranges, {}, &tap::PositionRange::begin);
  Ranges joined;
  for (const tap::PositionRange& range : ranges) {
    if (!joined.empty() && range.begin <= joined.back().end) {
      joined.back().end = std::max(joined.back().end, range.end);
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

// Both normalised.
Ranges intersection(const Ranges& a, const Ranges& b) {
  Ranges common;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const int32_t begin = std::max(a[i].begin, b[j].begin);
    const int32_t end = std::min(a[i].end, b[j].end);
    if (begin < end) common.push_back({begin, end});
    if (a[i].end < b[j].end) {
      ++i;
    } else {
      ++j;
    }
  }
  return common;
}

// A window's border as a position in the prompt.
int32_t prompt_position(int32_t border, int32_t prompt_len) {
  const int64_t position = border < 0 ? int64_t{prompt_len} + border : int64_t{border};
  return static_cast<int32_t>(std::clamp<int64_t>(position, 0, prompt_len));
}

int32_t generation_position(int32_t border, int32_t prompt_len) {
  if (border == tap::kNoEnd) return tap::kNoEnd;
  return static_cast<int32_t>(std::min<int64_t>(int64_t{prompt_len} + border, tap::kNoEnd));
}

Ranges of_windows(const Selector& selector, int32_t prompt_len) {
  if (selector.prompt.empty() && selector.generation.empty()) return {{0, tap::kNoEnd}};
  Ranges ranges;
  for (const Window& window : selector.prompt) {
    ranges.push_back(
        {prompt_position(window.begin, prompt_len),
         window.end == tap::kNoEnd ? prompt_len : prompt_position(window.end, prompt_len)});
  }
  for (const Window& window : selector.generation) {
    ranges.push_back({generation_position(window.begin, prompt_len),
                      generation_position(window.end, prompt_len)});
  }
  return normalised(std::move(ranges));
}

bool has_role(uint8_t roles, Role role) {
  return (roles >> static_cast<unsigned>(role) & 1U) != 0;
}

Ranges of_roles(uint8_t roles, const PromptShape& shape, Role generated) {
  const auto wanted = [&](Role role) { return has_role(roles, role); };
  Ranges ranges;
  for (const RoleSpan& span : shape.roles) {
    if (wanted(span.role)) ranges.push_back(span.tokens);
  }
  if (wanted(generated)) ranges.push_back({shape.prompt_len, tap::kNoEnd});
  return normalised(std::move(ranges));
}

Ranges of_token_ids(const std::vector<int32_t>& wanted, const std::vector<int32_t>& tokens) {
  Ranges ranges;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto position = static_cast<int32_t>(i);
    if (std::ranges::binary_search(wanted, tokens[i])) ranges.push_back({position, position + 1});
  }
  return normalised(std::move(ranges));
}

// Everything but these positions, ascending.
Ranges all_but(const std::vector<int32_t>& positions) {
  Ranges ranges;
  int32_t begin = 0;
  for (const int32_t position : positions) {
    ranges.push_back({begin, position});
    begin = position + 1;
  }
  ranges.push_back({begin, tap::kNoEnd});
  return normalised(std::move(ranges));
}

}  // namespace

std::string_view role_name(Role role) {
  static constexpr std::array<std::string_view, kNumRoles> kNames = {"system", "user", "assistant",
                                                                     "reasoning"};
  return kNames[static_cast<size_t>(role)];
}

bool tells_thoughts(const Selector& selector) {
  return has_role(selector.roles, Role::kAssistant) != has_role(selector.roles, Role::kReasoning);
}

Result<std::vector<tap::PositionRange>> select(const Selector& selector, const PromptShape& shape,
                                               Role generated) {
  if (selector.roles != 0 && !shape.has_roles) {
    return fail(ErrorCode::kInvalidArgument,
                "steering by role needs a chat whose template tells which tokens are whose",
                "steering");
  }
  Ranges selected = of_windows(selector, shape.prompt_len);
  if (selector.phase == Phase::kPrefill) {
    selected = intersection(selected, normalised({{0, shape.prompt_len}}));
  } else if (selector.phase == Phase::kDecode) {
    selected = intersection(selected, {{shape.prompt_len, tap::kNoEnd}});
  }
  if (selector.from_last_prompt) {
    selected = intersection(selected, {{std::max(shape.prompt_len - 1, 0), tap::kNoEnd}});
  }
  if (selector.roles != 0) {
    selected = intersection(selected, of_roles(selector.roles, shape, generated));
  }
  if (!selector.token_ids.empty()) {
    selected = intersection(selected, of_token_ids(selector.token_ids, shape.tokens));
  }
  if (selector.without_special) selected = intersection(selected, all_but(shape.special_at));
  return selected;
}

}  // namespace rudder::steer
