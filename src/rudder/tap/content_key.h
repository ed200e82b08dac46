// ContentKey: a 128-bit hash of what something does to activations: a program, a dictionary. Plain
// values; any thread.
#pragma once

#include <cstdint>

namespace rudder::tap {

// Programs with equal keys give equal activations. {0, 0}: no program.
struct ContentKey {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const ContentKey&) const = default;
  bool none() const { return low == 0 && high == 0; }
};

}  // namespace rudder::tap
