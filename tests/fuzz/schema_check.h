// A second reader of JSON Schema, for what the engine's grammars let through: it knows the keywords
// below alone, and says no only where a document certainly breaks one of them. It shares no code
// with the room `constraint`.
#pragma once

#include <boost/json/fwd.hpp>
#include <string>

namespace rudder::fuzz {

// The keyword that the document breaks, or nothing. Known: type, enum, const, minimum, maximum,
// exclusiveMinimum, exclusiveMaximum, minLength, maxLength, minItems, maxItems, items, prefixItems,
// properties, required, additionalProperties, minProperties, maxProperties, allOf, anyOf, oneOf. A
// schema with $ref is not looked into.
std::string broken_keyword(const boost::json::value& schema, const boost::json::value& document);

}  // namespace rudder::fuzz
