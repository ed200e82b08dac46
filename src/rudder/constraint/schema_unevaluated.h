// `unevaluatedProperties` where it says what `additionalProperties` would. Pure.
#pragma once

#include <boost/json/fwd.hpp>

#include "rudder/constraint/fuel.h"
#include "rudder/constraint/schema_document.h"

namespace rudder::constraint {

// Puts `additionalProperties` where the schema has `unevaluatedProperties`. False, and nothing is
// changed, where that is not the same: a reference, option or condition in it names
// fields, so which fields are evaluated depends on what holds; or where the fuel is out.
bool close_object(Fuel& fuel, const SchemaDocument& document, boost::json::object& schema);

}  // namespace rudder::constraint
