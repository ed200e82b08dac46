// Small questions to a schema in its normal form (schema_document.h). Pure.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rudder::constraint {

// A number's operand, or `otherwise` where the keyword is not there.
int64_t count_or(const boost::json::object& schema, std::string_view key, int64_t otherwise);

// The other keywords that bind; no definitions either, which references find in the document.
boost::json::object without(const boost::json::object& schema, std::string_view key);

// Keywords that bind, apart from `but`.
size_t num_binding(const boost::json::object& schema, std::string_view but);

// Whether it refuses anything at all.
bool binds(const boost::json::value& schema);

// "integer" has 2.0 too.
bool value_has_type(const boost::json::value& value, std::string_view type);

// The types that a schema names; none where it names none, and where none is left.
std::vector<std::string> types_of(const boost::json::object& schema);

// A schema that names its values, and says nothing else.
bool lists_values(const boost::json::value& schema);

// Schemas each of which has to accept an item.
boost::json::array contained_in(const boost::json::object& schema);

// The values that kNoneOf lists.
boost::json::array refused_values(const boost::json::object& schema);

}  // namespace rudder::constraint
