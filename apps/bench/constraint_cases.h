// The cases of `rudder bench constraint`: a fixed set of forms in common use, each with outputs
// that satisfy it.
#pragma once

#include <string>
#include <vector>

#include "rudder/constraint/grammar_spec.h"

namespace rudder::apps {

struct ConstraintCase {
  std::string name;
  constraint::GrammarSpec spec;
  std::vector<std::string> outputs;
};

std::vector<ConstraintCase> constraint_cases();

}  // namespace rudder::apps
