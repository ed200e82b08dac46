// How many texts an automaton has. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "rudder/constraint/pattern_dfa.h"

namespace rudder::constraint {

constexpr int32_t kManyTexts = 100'000;  // or more; a list has fewer items

// By state: the texts that lead from it to the end, which is behind the closing quote where the
// automaton is `quoted`; kManyTexts at the most. Takes as long as there are entries in `next`.
std::vector<int32_t> text_counts(const ByteAutomaton& automaton, bool quoted);
// How many texts go on for `min` to `max` characters in all, of which `chars` are there, with
// `choices` for each; kManyTexts at the most.
int32_t text_count(int64_t choices, int32_t min, int32_t max, int32_t chars);
// Whether there are so many from each state: no text that has begun has to end. `counts`: of it.
bool always_goes_on(const ByteAutomaton& automaton, const std::vector<int32_t>& counts);

}  // namespace rudder::constraint
