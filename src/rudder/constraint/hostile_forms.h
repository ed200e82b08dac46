// Forms that cost as much as a client can make them cost, for the tests of the bounds of a compile:
// each part of translation and compilation has one that drives it as far as the limit on a form's
// text lets it. Tests only.
#pragma once

#include <string>
#include <vector>

#include "rudder/constraint/grammar_spec.h"

namespace rudder::constraint {

struct HostileForm {
  std::string name;
  GrammarSpec spec;  // at most GrammarSettings::max_grammar bytes, as it is by default
};

std::vector<HostileForm> hostile_forms();

}  // namespace rudder::constraint
