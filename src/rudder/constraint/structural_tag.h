// Replaces the schemas inside a structural tag by grammars, so that the tag can be part of another
// one whose schemas use other whitespace. Pure functions; any thread.
#pragma once

#include <string>

#include "rudder/base/result.h"
#include "rudder/constraint/fuel.h"
#include "rudder/constraint/grammar_spec.h"

namespace rudder::constraint {

// Every {"type": "json_schema"} becomes {"type": "grammar"}. kInvalidArgument with `where` = the
// path inside the text; kUnsupported for schemas of other notations than JSON.
// All schemas together burn the fuel.
Result<std::string> open_structural_tag(Fuel& fuel, const GrammarSpec& spec);

}  // namespace rudder::constraint
