// Translates the `format`s of JSON Schema strings into patterns. Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>

namespace rudder::constraint {

// The anchored pattern of a format; empty when the format is not known.
std::string format_pattern(std::string_view format);
// "date, time, ..." for messages.
std::string known_formats();

}  // namespace rudder::constraint
