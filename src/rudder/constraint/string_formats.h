// Translates the `format`s of JSON Schema strings into patterns. Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>

namespace rudder::constraint {

// The anchored pattern of a format; empty when the format is not known.
std::string format_pattern(std::string_view format);
// A pattern that whatever anybody takes for a string of this format matches, and others may: for
// strings that must not have it. Empty when the format is not known.
std::string wide_format_pattern(std::string_view format);
// "date, time, ..." for messages.
std::string known_formats();

}  // namespace rudder::constraint
