// The table of JSON Schema keywords. The server enforces a keyword, takes it for an annotation (it
// does not affect what is valid), or refuses it by name. A keyword that is not in the table is an
// annotation.
#pragma once

#include <boost/json/fwd.hpp>
#include <string>
#include <string_view>

#include "rudder/base/result.h"
#include "rudder/constraint/fuel.h"

namespace rudder::constraint {

// The type whose values a keyword is about: with no `type` beside it, that type is meant.
enum class KeywordOf : uint8_t { kAnything, kString, kNumber, kObject, kArray };

struct KeywordInfo {
  bool annotation = false;
  KeywordOf of = KeywordOf::kAnything;
};

// Keywords of the normal form alone: a list of schemas none of which may hold; a list of
// conditions, each an object with the schemas `if`, `then` and `else`; expressions that a string
// matches, all of them, and such that it does not match; what schemas of objects that bind together
// say of fields by their names, each with its own `properties`, `patternProperties` and
// `additionalProperties`; schemas each of which accepts an item.
constexpr std::string_view kNoneOf = "#noneOf";
constexpr std::string_view kConditions = "#conditions";
constexpr std::string_view kPatterns = "#patterns";
constexpr std::string_view kNoPatterns = "#noPatterns";
constexpr std::string_view kShapes = "#shapes";
constexpr std::string_view kContained = "#contained";
// In strings and numbers by which the items of a list differ.
constexpr std::string_view kUnique = "#unique";
// A name of `type` in the normal form alone: numbers that are not whole. What is no integer is of
// this type, or no number.
constexpr std::string_view kFraction = "#fraction";

// Names that are not in the table are annotations.
KeywordInfo keyword_info(std::string_view name);
bool is_keyword(std::string_view name);  // in the table

// Every keyword of one schema that asserts is known, and its operand has the right type; other
// names are annotations, unless they look like a keyword that is misspelled. Subschemas are not
// looked into. `path` is where the schema is, for Error.where.
Result<void> check_keywords(Fuel& fuel, const boost::json::object& schema, const std::string& path);

// ".properties.name", "[3]": how paths are written.
std::string path_to(const std::string& path, std::string_view key);
std::string path_to(const std::string& path, size_t index);

}  // namespace rudder::constraint
