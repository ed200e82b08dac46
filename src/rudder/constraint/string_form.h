// StringForm: which strings a schema accepts, as expressions that they all match, expressions that
// none matches, and lengths. As a node it is one terminal, whose automaton is the product of those
// of the expressions and a count of characters. Pure functions; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/constraint/pattern.h"
#include "rudder/constraint/pattern_dfa.h"
#include "rudder/constraint/rule_set.h"

namespace rudder::constraint {

struct StringForm {
  std::vector<std::string> all;
  std::vector<std::string> never;
  PatternBounds bounds;
};

// The expression that matches these very values.
std::string pattern_of_values(const std::vector<std::string>& values);
// The expression that matches `min` to `max` characters of the set, and nothing else.
std::string pattern_of_chars(const CharSet& set, const PatternBounds& bounds);

// Of the strings in their JSON spelling, quotes included; not `quoted`: of texts that are just what
// the expressions match. Nothing when it would be too large, or the fuel is out. kInvalidArgument:
// an expression is none, or outside the subset of pattern.h.
Result<std::optional<ByteAutomaton>> string_automaton(Fuel& fuel, const StringForm& form,
                                                      bool quoted = true);

// The same as a node. nothing() where no string is accepted.
Result<RuleSet::Node> build_string_form(RuleSet& rules, const StringForm& form);

// Whether the automaton takes the string, given as its value.
bool takes_string(const ByteAutomaton& automaton, std::string_view value);

}  // namespace rudder::constraint
