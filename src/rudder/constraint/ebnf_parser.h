// EBNF (the notation of llama.cpp's and xgrammar's grammars) to rules:
//   name ::= sequence | sequence ...      the rule `root` is the whole output
//   "text"  [a-z]  [^\n"]  name  (...)    what sequences are made of; [] are characters
//   x*  x+  x?  x{2}  x{2,}  x{2,5}       repetitions
//   Token(1, 2)  ExcludeToken(3)          one token, by its id
//   Regex("...")                          what the regular expression matches
//   # comment
// and descriptions of terminals (terminal.h), which RuleSet::to_ebnf() writes. Pure; any thread.
#pragma once

#include <string_view>

#include "rudder/base/result.h"
#include "rudder/constraint/rule_set.h"

namespace rudder::constraint {

// kInvalidArgument names what is wrong and its line.
Result<RuleSet::Node> build_ebnf(RuleSet& rules, std::string_view text);

}  // namespace rudder::constraint
