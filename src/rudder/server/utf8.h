// Small UTF-8 helpers for what the vocabulary may hold: bytes that are no whole characters.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace rudder::server {

// `bytes` with each byte that belongs to no well-formed character replaced by U+FFFD.
std::string to_valid_utf8(std::string_view bytes);

// Characters of valid UTF-8.
size_t count_code_points(std::string_view text);

}  // namespace rudder::server
