// Translates JSON Schema into a grammar whose outputs are exactly the JSON texts that the schema
// accepts, with keys in one order (that of `properties`, then additional ones). A keyword that a
// grammar cannot enforce is an error with its path; none is ignored. docs/adr/0014 has the rules,
// and where this is narrower than the standard.
#pragma once

#include <string_view>

#include "rudder/base/result.h"
#include "rudder/constraint/grammar_spec.h"
#include "rudder/constraint/rule_set.h"

namespace rudder::constraint {

// kInvalidArgument with `where` = the path inside the schema.
Result<RuleSet::Node> build_json_schema(RuleSet& rules, std::string_view schema, JsonSpace space);

}  // namespace rudder::constraint
