// Python's string functions on UTF-8 text. Used by the filters and the methods.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rudder::text::jinja {

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string title(std::string_view text);
// Strips any of the characters in `chars` from the ends; white space where `chars` is null.
std::string_view strip(std::string_view text, const std::string_view* chars, bool left, bool right);
// At most `limit` replacements where limit >= 0.
std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    int64_t limit);
// An upper bound on the parts that split() makes.
size_t count_parts(std::string_view text, const std::string_view* separator);
// Splits at `separator`, or at runs of white space where it is null; at most `limit` cuts if >= 0.
std::vector<std::string_view> split(std::string_view text, const std::string_view* separator,
                                    int64_t limit);

}  // namespace rudder::text::jinja
