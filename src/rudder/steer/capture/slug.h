// Checks names of files and folders that come from clients. A slug is 1 to 128 of [A-Za-z0-9._-]
// and does not begin with a dot, so it always names one entry of one folder.
#pragma once

#include <string>
#include <string_view>

namespace rudder::steer::capture {

inline constexpr size_t kMaxSlug = 128;

bool is_slug(std::string_view text);
// `text` with everything else as '_'; never empty.
std::string make_slug(std::string_view text);

}  // namespace rudder::steer::capture
