// JSON Schema to a grammar: the outputs are exactly JSON that the schema accepts, in one order of
// keys (that of `properties`, then what is additional). What a grammar cannot hold is refused by
// its path, never ignored: docs/adr/0014 has the rules, and what is narrower than the standard.
#pragma once

#include <string_view>

#include "rudder/base/result.h"
#include "rudder/constraint/grammar_spec.h"
#include "rudder/constraint/rule_set.h"

namespace rudder::constraint {

// kInvalidArgument with `where` = the path inside the schema.
Result<RuleSet::Node> build_json_schema(RuleSet& rules, std::string_view schema, JsonSpace space);

}  // namespace rudder::constraint
