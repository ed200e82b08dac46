// The characters whose capital or title letter is several characters. Used by strings.cpp.
#pragma once

#include <string_view>

namespace rudder::text::jinja {

struct SpecialCasing {
  char32_t character;
  std::string_view upper;  // UTF-8
  std::string_view title;
};

// Null for all others.
const SpecialCasing* find_special_casing(char32_t c);

}  // namespace rudder::text::jinja
