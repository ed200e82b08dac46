// File descriptors: how many connections the system lets this process have.
#pragma once

#include <cstdint>

namespace rudder::server {

// Raises the process's limit as far as it may and as `wanted` connections beside what is open and
// `reserve` need. How many connections there is room for then, at most `wanted` and at least 1.
int32_t make_descriptor_room(int32_t wanted, int32_t reserve);

}  // namespace rudder::server
