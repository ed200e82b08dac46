// Free text that ends before certain strings, as states of a rule's automaton. It is the
// Aho-Corasick automaton of these strings (1975) over whole characters. The compiler of rules calls
// it, on its own thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rudder/constraint/fuel.h"
#include "rudder/constraint/rule_nfa.h"

namespace rudder::constraint {

// From `begin` on, any characters until one of `texts` is there: then the state of `behind` with
// the same index, or nowhere where that is below zero. The text may end, at `end`, after each
// character. Where several texts end at once, the first of them counts.
void take_free_text(RuleNfa& nfa, Fuel& fuel, const std::vector<std::string>& texts,
                    const std::vector<int32_t>& behind, int32_t begin, int32_t end);

}  // namespace rudder::constraint
