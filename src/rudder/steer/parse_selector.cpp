// The "select" of an element.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>

#include "rudder/steer/parse_common.h"

namespace rudder::steer {
namespace {

namespace json = boost::json;

constexpr size_t kMaxWindows = 64;
constexpr size_t kMaxTokenIds = 1024;

std::string_view text_of(const json::value& value) {
  const json::string* text = value.if_string();
  return text == nullptr ? std::string_view() : std::string_view(text->data(), text->size());
}

// [begin, end), either of them null for an open one.
Result<Window> read_window(const json::array& pair, bool of_prompt, const std::string& path) {
  if (pair.size() != 2) return invalid_field("two numbers are needed: [begin, end]", path);
  Window window;
  for (size_t i = 0; i < 2; ++i) {
    if (pair[i].is_null()) continue;
    const std::string where = fmt::format("{}[{}]", path, i);
    RUDDER_TRY(const int32_t border, read_int(pair[i], where));
    if (!of_prompt && border < 0) {
      return invalid_field("where a generation ends is not known beforehand", where);
    }
    (i == 0 ? window.begin : window.end) = border;
  }
  const bool comparable = (window.begin < 0) == (window.end < 0);
  if (comparable && window.begin >= window.end) return invalid_field("the window is empty", path);
  return window;
}

// One window, or a list of them.
Result<std::vector<Window>> read_windows(const json::value& value, bool of_prompt,
                                         const std::string& path) {
  const json::array* list = value.if_array();
  if (list == nullptr || list->empty()) {
    return invalid_field("a window [begin, end] or a list of windows is needed", path);
  }
  std::vector<Window> windows;
  if (!(*list)[0].is_array()) {
    RUDDER_TRY(const Window window, read_window(*list, of_prompt, path));
    windows.push_back(window);
    return windows;
  }
  if (list->size() > kMaxWindows) {
    return invalid_field(fmt::format("{} windows: at most {}", list->size(), kMaxWindows), path);
  }
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string where = fmt::format("{}[{}]", path, i);
    const json::array* pair = (*list)[i].if_array();
    if (pair == nullptr) return invalid_field("two numbers are needed: [begin, end]", where);
    RUDDER_TRY(const Window window, read_window(*pair, of_prompt, where));
    windows.push_back(window);
  }
  return windows;
}

Result<uint8_t> read_roles(const json::value& value, const std::string& path) {
  const json::array* list = value.if_array();
  if (list == nullptr || list->empty()) return invalid_field("a list of roles is needed", path);
  uint8_t roles = 0;
  for (size_t i = 0; i < list->size(); ++i) {
    int32_t role = 0;
    while (role < kNumRoles && role_name(static_cast<Role>(role)) != text_of((*list)[i])) ++role;
    if (role == kNumRoles) {
      return invalid_field("one of \"system\", \"user\", \"assistant\", \"reasoning\" is needed",
                           fmt::format("{}[{}]", path, i));
    }
    roles = static_cast<uint8_t>(roles | 1U << static_cast<unsigned>(role));
  }
  return roles;
}

// Ascending, each once.
Result<std::vector<int32_t>> read_token_ids(const json::value& value, const std::string& path) {
  const json::array* list = value.if_array();
  if (list == nullptr || list->empty() || list->size() > kMaxTokenIds) {
    return invalid_field(fmt::format("a list of 1 to {} token ids is needed", kMaxTokenIds), path);
  }
  std::vector<int32_t> ids;
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string where = fmt::format("{}[{}]", path, i);
    RUDDER_TRY(const int32_t id, read_int((*list)[i], where));
    if (id < 0) return invalid_field("a token id is not below 0", where);
    ids.push_back(id);
  }
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace

Result<Selector> parse_selector(const json::value& value, const std::string& path) {
  static constexpr std::array<std::string_view, 6> kKeys = {"phase", "prompt",    "generation",
                                                            "roles", "token_ids", "special"};
  static constexpr std::array<std::string_view, 3> kPhases = {"all", "prefill", "decode"};
  const json::object* object = value.if_object();
  if (object == nullptr) return invalid_field("an object is needed", path);
  RUDDER_TRY_VOID(check_keys(*object, kKeys, "\"select\"", path));
  Selector selector;
  if (const json::value* phase = member(*object, "phase")) {
    const auto* found = std::ranges::find(kPhases, text_of(*phase));
    if (found == kPhases.end()) {
      return invalid_field("one of \"all\", \"prefill\", \"decode\" is needed",
                           join_path(path, "phase"));
    }
    selector.phase = static_cast<Phase>(found - kPhases.begin());
  }
  if (const json::value* windows = member(*object, "prompt")) {
    RUDDER_TRY(selector.prompt, read_windows(*windows, true, join_path(path, "prompt")));
  }
  if (const json::value* windows = member(*object, "generation")) {
    RUDDER_TRY(selector.generation, read_windows(*windows, false, join_path(path, "generation")));
  }
  if (const json::value* roles = member(*object, "roles")) {
    RUDDER_TRY(selector.roles, read_roles(*roles, join_path(path, "roles")));
  }
  if (const json::value* ids = member(*object, "token_ids")) {
    RUDDER_TRY(selector.token_ids, read_token_ids(*ids, join_path(path, "token_ids")));
  }
  if (const json::value* special = member(*object, "special")) {
    if (!special->is_bool()) {
      return invalid_field("true or false is needed", join_path(path, "special"));
    }
    selector.without_special = !special->get_bool();
  }
  return selector;
}

}  // namespace rudder::steer
