// UTF-8 that is known to be valid (it came out of parsed JSON) as code points, and back.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rudder::constraint {

std::vector<uint32_t> code_points(std::string_view utf8);
void append_utf8(std::string& out, uint32_t code_point);

}  // namespace rudder::constraint
