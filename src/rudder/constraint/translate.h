// From a GrammarSpec to the grammar that xgrammar compiles. Pure; time and memory are bounded by
// the fuel. Any thread.
#pragma once

#include <string>

#include "rudder/base/result.h"
#include "rudder/constraint/fuel.h"
#include "rudder/constraint/grammar_spec.h"

namespace rudder::constraint {

// EBNF with the rule `root`, and descriptions of terminals in it (terminal.h), which XgrammarEngine
// takes. kInvalidArgument with `where` = the path inside the text. Not for kStructuralTag, which
// xgrammar reads by itself.
Result<std::string> to_ebnf(Fuel& fuel, const GrammarSpec& spec);
// With fuel of its own.
Result<std::string> to_ebnf(const GrammarSpec& spec);

}  // namespace rudder::constraint
