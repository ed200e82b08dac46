// How far two names are apart, for "did you mean".
#pragma once

#include <cstddef>
#include <string_view>

namespace rudder {

// Letters to insert, delete or replace to make one of the other (Levenshtein).
// O(|a| |b|): for names.
size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace rudder
