// From a GrammarSpec to the grammar that xgrammar compiles. Pure and bounded: the time is linear in
// the text but for schemas, whose rules are bounded in number. Any thread.
#pragma once

#include <string>

#include "rudder/base/result.h"
#include "rudder/constraint/grammar_spec.h"

namespace rudder::constraint {

// EBNF with the rule `root`, and descriptions of terminals in it (terminal.h), which XgrammarEngine
// takes. kInvalidArgument with `where` = the path inside the text. Not for kStructuralTag, which
// xgrammar reads by itself.
Result<std::string> to_ebnf(const GrammarSpec& spec);

}  // namespace rudder::constraint
