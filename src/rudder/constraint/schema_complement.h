// Makes the schema that accepts exactly what another one refuses. Translation needs it for `not`,
// `if`, and options of `oneOf` that overlap. It works on schemas in their normal form
// (schema_document.h). Pure functions; any thread.
#pragma once

#include <boost/json/fwd.hpp>
#include <string>

#include "rudder/base/result.h"
#include "rudder/constraint/fuel.h"
#include "rudder/constraint/schema_document.h"

namespace rudder::constraint {

// A schema of the values that `schema` refuses; numbers may be missing where it names integers
// alone. kInvalidArgument, with the keyword's path, where no schema can say it (the complement of a
// pattern). Not for what this returned.
Result<boost::json::value> complement(Fuel& fuel, const SchemaDocument& document,
                                      const boost::json::value& schema, const std::string& path);

}  // namespace rudder::constraint
