// Structural tags as documents: vLLM's older form becomes the newer one, and the schemas inside a
// tag become grammars, so that it can be part of another one whose schemas use other whitespace.
// Pure functions; any thread.
#pragma once

#include <boost/json/fwd.hpp>
#include <string>

#include "rudder/base/result.h"
#include "rudder/constraint/fuel.h"
#include "rudder/constraint/grammar_spec.h"

namespace rudder::constraint {

// Of brackets: a schema may have as many as in any request, and the formats around it as many
// again.
constexpr size_t kMaxTagDepth = 160;

// vLLM's older form: {"structures": [{"begin", "schema", "end"}, ...], "triggers": [...]}.
bool is_of_structures(const boost::json::value& tag);
// The tag, with a `format` also where it is of the older form. kInvalidArgument where it is of
// neither.
Result<boost::json::value> with_format(const boost::json::value& tag);
// What is at the path of the newer form, in the older one that it was made from.
std::string path_in_structures(std::string path);

// The tag with its `format`; every {"type": "json_schema"} in it becomes {"type": "grammar"}.
// kInvalidArgument with `where` = the path inside the text; kUnsupported for schemas of other
// notations than JSON. All schemas together burn the fuel.
Result<std::string> open_structural_tag(Fuel& fuel, const GrammarSpec& spec);

}  // namespace rudder::constraint
