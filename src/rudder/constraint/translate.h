// From a GrammarSpec to rules. Pure; time and memory are bounded by the fuel. Any thread.
#pragma once

#include <string>

#include "rudder/base/result.h"
#include "rudder/constraint/fuel.h"
#include "rudder/constraint/grammar_spec.h"
#include "rudder/constraint/rule_set.h"

namespace rudder::constraint {

// The outputs of the spec as a node. kInvalidArgument with `where` = the path inside the text.
Result<RuleSet::Node> translate(RuleSet& rules, const GrammarSpec& spec);

// The same as EBNF (ebnf_parser.h), to be put into a structural tag. Not for kStructuralTag.
Result<std::string> to_ebnf(Fuel& fuel, const GrammarSpec& spec);
// With fuel of its own.
Result<std::string> to_ebnf(const GrammarSpec& spec);

}  // namespace rudder::constraint
