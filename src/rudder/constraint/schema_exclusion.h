// Decides whether two schemas exclude each other, which options of `oneOf` do in most documents. It
// works on schemas in their normal form (schema_document.h). Pure; any thread.
#pragma once

#include <boost/json/fwd.hpp>

#include "rudder/constraint/fuel.h"
#include "rudder/constraint/schema_complement.h"
#include "rudder/constraint/schema_document.h"

namespace rudder::constraint {

// True when no value can be valid by both; false when that is not clear, or the fuel is out.
bool exclude_each_other(Fuel& fuel, const SchemaDocument& document, const boost::json::value& a,
                        const boost::json::value& b);

// Whether every object that the schema accepts is one of the way's: of what a complement has for a
// field that is required, or whose value is wrong. False when that is not clear.
bool objects_take(Fuel& fuel, const SchemaDocument& document, const boost::json::value& schema,
                  const boost::json::value& way);

// The fields that objects of the schema may have, as far as it names them.
KnownFields known_fields(const SchemaDocument& document, const boost::json::value& schema);

// Whether the schema accepts every value that is no object; false when that is not clear.
bool binds_objects_alone(const SchemaDocument& document, const boost::json::value& schema);

}  // namespace rudder::constraint
