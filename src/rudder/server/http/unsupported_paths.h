// Paths of other servers and APIs that this server does not have. Requests to them get an answer
// that says what is not supported, instead of a plain 404. Any thread.
#pragma once

#include <string_view>

namespace rudder::server {

// What is behind the path, or "" where it is not a known one.
std::string_view unsupported_feature(std::string_view path);

}  // namespace rudder::server
