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
std::string swapcase(std::string_view text);
std::string casefold(std::string_view text);
bool is_cased(char32_t c);
bool is_space(char32_t c);
// &, <, >, " and ' as HTML writes them.
std::string escape_html(std::string_view text);
std::string_view strip(std::string_view text, const std::string_view* chars, bool left, bool right);
// As std::string_view::find, but in linear time whatever the texts are.
size_t find_text(std::string_view text, std::string_view part, size_t from = 0);
// At most `limit` replacements where limit >= 0.
std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    int64_t limit);
// Cut at line ends, as str.splitlines does; with them if `keep`.
std::vector<std::string_view> split_lines(std::string_view text, bool keep);
// An upper bound on the parts that split() makes.
size_t count_parts(std::string_view text, const std::string_view* separator);
// Splits at `separator`, or at runs of white space where it is null; at most `limit` cuts if >= 0.
std::vector<std::string_view> split(std::string_view text, const std::string_view* separator,
                                    int64_t limit);
// The same from the right.
std::vector<std::string_view> split_back(std::string_view text, const std::string_view* separator,
                                         int64_t limit);

}  // namespace rudder::text::jinja
