// Random loads of large prompts that fill the pool of blocks, and small ones beside them: whether a
// small one begins soon, and a large one however many small ones come (step.I17).
#pragma once

#include <cstdint>
#include <string>

namespace rudder::testing {

struct OvertakingTotals {
  uint64_t overtakes = 0;  // small prompts that went past a large one
  uint64_t large = 0;      // prompts that began, beside a flood of small ones
};

// The first thing that is wrong, in words; empty when nothing is.
std::string run_overtaking_stress(uint64_t seed, OvertakingTotals* totals = nullptr);

}  // namespace rudder::testing
