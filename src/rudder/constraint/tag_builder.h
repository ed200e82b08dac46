// Structural tags to rules: text of a form in which parts of other forms stand, as vLLM, SGLang and
// xgrammar take them: {"type": "structural_tag", "format": {...}}, and vLLM's older
// {"structures": [{"begin", "schema", "end"}], "triggers": [...]}. Pure; any thread.
#pragma once

#include <string_view>

#include "rudder/base/result.h"
#include "rudder/constraint/grammar_spec.h"
#include "rudder/constraint/rule_set.h"

namespace rudder::constraint {

// kInvalidArgument with `where` = the path inside the text; kUnsupported for schemas of other
// notations than JSON, and for budgets of tokens.
Result<RuleSet::Node> build_structural_tag(RuleSet& rules, std::string_view text, JsonSpace space);

}  // namespace rudder::constraint
