// How much memory this process may still allocate: the least of the machine's free memory and the
// limits of its control groups. Called once at start.
#pragma once

#include <cstdint>
#include <string>

namespace rudder::cpu {

// Bytes; of a machine whose /proc is not mounted, what is free without dropping page cache. `root`
// is where /proc and /sys are looked up (tests); 0 when nothing can be read there.
int64_t available_host_memory(const std::string& root = "");

}  // namespace rudder::cpu
