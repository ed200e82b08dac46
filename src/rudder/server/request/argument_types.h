// Which JSON types a tool's arguments may have, as its JSON Schema says: dialects that write all
// values as bare text need it. Pure; any thread.
#pragma once

#include <boost/json/fwd.hpp>

#include "rudder/dialect/dialect.h"

namespace rudder::server {

// Sets the arguments of `tool` by `parameters`: what `properties` has, there or behind references,
// in parts (allOf) and in alternatives (anyOf, oneOf), and `additionalProperties` for the rest.
// What the schema does not say is text. The work is linear in the schema.
void read_argument_types(const boost::json::object& parameters, dialect::Tool* tool);

}  // namespace rudder::server
