// Writes base64 with padding (RFC 4648, section 4), for the packed form of vectors.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace rudder::steer::capture {

void append_base64(std::string& out, std::span<const std::byte> bytes);

}  // namespace rudder::steer::capture
