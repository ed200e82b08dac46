// Makes the schema that accepts exactly what another one refuses. Translation needs it for `not`,
// `if`, and options of `oneOf` that overlap. It works on schemas in their normal form
// (schema_document.h). Pure functions; any thread.
#pragma once

#include <boost/json.hpp>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/constraint/fuel.h"
#include "rudder/constraint/schema_document.h"

namespace rudder::constraint {

struct Complement {
  // Schemas; whatever one of them accepts, the schema refuses.
  boost::json::array ways;
  // Whether they have all that it refuses. Numbers may be missing all the same where it names
  // integers alone.
  bool exact = true;

  // One schema of all ways; false where there is none.
  boost::json::value any() &&;
};

// The fields of an object, as far as they are known.
struct KnownFields {
  std::vector<std::string> names;
  bool all = false;  // there are no others
};

// kInvalidArgument, with the keyword's path, where nothing that `schema` refuses can be said as a
// schema (the lists that have no item of a kind), or the fuel is out. Not for what this returned.
// `fields`: of the objects that are asked for, by which additional ones are told.
Result<Complement> complement(Fuel& fuel, const SchemaDocument& document,
                              const boost::json::value& schema, const std::string& path,
                              const KnownFields& fields = {});

// The types that an operand of `type` does not name. Of "number" the half that is not named.
boost::json::array other_types(const boost::json::value& type);

}  // namespace rudder::constraint
