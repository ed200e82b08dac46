// Decodes base64 (RFC 4648, the standard alphabet with padding) in one pass into the caller's
// memory. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

namespace rudder::steer {

// Bytes that `text` stands for, by its length and padding; none when no text has that length.
std::optional<size_t> base64_bytes(std::string_view text);

// Decodes into `out`, which has base64_bytes(text) bytes. False, with anything in `out`, when there
// is a character that does not belong, or bits that no encoder sets.
bool decode_base64(std::string_view text, std::span<std::byte> out);

}  // namespace rudder::steer
