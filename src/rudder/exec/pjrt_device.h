// The device setting of a PJRT plugin: "pjrt:" and the path of its library. Plain text; any thread.
#pragma once

#include <string_view>

namespace rudder::exec {

inline constexpr std::string_view kPjrtPrefix = "pjrt:";

inline bool is_pjrt(std::string_view device) {
  return device.starts_with(kPjrtPrefix);
}
inline std::string_view plugin_of(std::string_view device) {
  return device.substr(kPjrtPrefix.size());
}

}  // namespace rudder::exec
