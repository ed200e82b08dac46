// Paths of other servers and APIs that clients may ask for and that this server does not have: they
// are refused by what they are for, not as if they were a typing error. Any thread.
#pragma once

#include <string_view>

namespace rudder::server {

// What is behind the path, or "" where it is not a known one.
std::string_view unsupported_feature(std::string_view path);

}  // namespace rudder::server
