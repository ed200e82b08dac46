// The schemas inside a structural tag, replaced by grammars, so that the tag can be put into
// another one whose schemas have other whitespace. Pure; any thread.
#pragma once

#include <string>

#include "rudder/base/result.h"
#include "rudder/constraint/grammar_spec.h"

namespace rudder::constraint {

// Every {"type": "json_schema"} becomes {"type": "grammar"}. kInvalidArgument with `where` = the
// path inside the text; kUnsupported for schemas of other notations than JSON.
Result<std::string> open_structural_tag(const GrammarSpec& spec);

}  // namespace rudder::constraint
