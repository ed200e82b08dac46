// Random loads of prompts of few tenants, with room for all: whether each plan runs those that it
// should (step.I13, step.I16).
#pragma once

#include <cstdint>
#include <string>

namespace rudder::testing {

struct PromptStressTotals {
  uint64_t shared = 0;     // parts of steps which a tenant's first prompt had with shorter ones
  uint64_t turns = 0;      // which were too small for that
  uint64_t sequences = 0;  // that were served
};

// The first thing that is wrong, in words; empty when nothing is.
std::string run_prompt_stress(uint64_t seed, PromptStressTotals* totals = nullptr);

}  // namespace rudder::testing
