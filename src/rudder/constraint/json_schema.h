// Translates JSON Schema into a grammar whose outputs are exactly the JSON texts that the schema
// accepts, with keys in one order (that of `properties`, then additional ones). A keyword that a
// grammar cannot enforce is an error with its path; none is ignored. docs/adr/0014 has the rules,
// docs/api.md where this is narrower than the standard.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/constraint/grammar_spec.h"
#include "rudder/constraint/rule_set.h"

namespace rudder::constraint {

// kInvalidArgument with `where` = the path inside the schema.
Result<RuleSet::Node> build_json_schema(RuleSet& rules, std::string_view schema, JsonSpace space);

// Paths inside the schema of names that are no keywords, and of formats that are not known: what
// has no effect. At most 16; none of a schema that is refused.
std::vector<std::string> ignored_in_schema(std::string_view schema);

}  // namespace rudder::constraint
