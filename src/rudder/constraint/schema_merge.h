// Joins schemas that must hold together (allOf, and keywords beside $ref, anyOf and oneOf) into one
// schema. It works on schemas as JSON. Pure functions; any thread.
#pragma once

#include <boost/json/fwd.hpp>
#include <string>

#include "rudder/base/result.h"
#include "rudder/constraint/fuel.h"

namespace rudder::constraint {

// A schema of the values that both accept. Subschemas that meet are joined by allOf, not looked
// into. Annotations are dropped. kInvalidArgument where one schema cannot say it (two patterns), or
// the fuel is out.
Result<boost::json::value> merge_schemas(Fuel& fuel, const boost::json::value& a,
                                         const boost::json::value& b, const std::string& path);

// Of values of a schema (SchemaDocument), whose numbers have one form each.
bool same_value(const boost::json::value& a, const boost::json::value& b);
// Whether the list has the value.
bool lists_value(const boost::json::array& list, const boost::json::value& value);

// Of two operands of `type`. "integer" and kFraction are the parts of "number".
boost::json::array common_types(const boost::json::value& a, const boost::json::value& b);

// The values that a const or an enum leaves; false when there is neither.
bool listed_values(const boost::json::object& schema, boost::json::array* out);

// Memory that the value takes, about.
int64_t json_bytes(const boost::json::value& value);

}  // namespace rudder::constraint
