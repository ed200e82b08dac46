#include "rudder/constraint/schema_parts.h"

#include <algorithm>
#include <optional>

#include "rudder/base/exact_json.h"
#include "rudder/constraint/schema_keywords.h"

namespace rudder::constraint {

namespace json = boost::json;

int64_t count_or(const json::object& schema, std::string_view key, int64_t otherwise) {
  const json::value* value = schema.if_contains(key);
  return value == nullptr ? otherwise : value->get_int64();
}

json::object without(const json::object& schema, std::string_view key) {
  json::object rest;
  for (const auto& field : schema) {
    if (field.key() != key && !keyword_info(field.key()).annotation) rest.insert(field);
  }
  return rest;
}

size_t num_binding(const json::object& schema, std::string_view but) {
  return static_cast<size_t>(std::count_if(schema.begin(), schema.end(), [&](const auto& field) {
    return field.key() != but && !keyword_info(field.key()).annotation;
  }));
}

bool binds(const json::value& schema) {
  return schema.is_bool() ? !schema.get_bool() : num_binding(schema.get_object(), "") > 0;
}

bool value_has_type(const json::value& value, std::string_view type) {
  if (type == "string") return is_string(value);
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "boolean") return value.is_bool();
  if (type == "null") return value.is_null();
  if (!is_number(value) || type == "number") return is_number(value);
  const std::optional<Decimal> number = decimal_of(value);
  return number && number->is_whole() == (type == "integer");
}

std::vector<std::string> types_of(const json::object& schema) {
  std::vector<std::string> types;
  const json::value* type = schema.if_contains("type");
  if (type == nullptr) return types;
  if (type->is_string()) {
    types.emplace_back(type->get_string());
  } else {
    for (const json::value& name : type->get_array()) types.emplace_back(name.get_string());
  }
  const json::value* nullable = schema.if_contains("nullable");
  if (nullable != nullptr && nullable->get_bool()) types.emplace_back("null");
  // An integer is a number too, and so is what is none.
  if (std::find(types.begin(), types.end(), "number") != types.end()) {
    std::erase(types, "integer");
    std::erase(types, kFraction);
  }
  return types;
}

bool lists_values(const json::value& schema) {
  const json::object* object = schema.if_object();
  return object != nullptr && (object->contains("enum") || object->contains("const")) &&
         std::all_of(object->begin(), object->end(), [](const auto& field) {
           return field.key() == "enum" || field.key() == "const" ||
                  keyword_info(field.key()).annotation;
         });
}

json::array contained_in(const json::object& schema) {
  if (const json::value* list = schema.if_contains(kContained)) return list->get_array();
  const json::value* one = schema.if_contains("contains");
  return one == nullptr ? json::array() : json::array({*one});
}

json::array refused_values(const json::object& schema) {
  json::array values;
  const json::value* refused = schema.if_contains(kNoneOf);
  if (refused == nullptr) return values;
  for (const json::value& one : refused->get_array()) {
    const json::object& list = one.get_object();
    if (const json::value* constant = list.if_contains("const")) values.push_back(*constant);
    const json::value* named = list.if_contains("enum");
    if (named == nullptr) continue;
    values.insert(values.end(), named->get_array().begin(), named->get_array().end());
  }
  return values;
}

}  // namespace rudder::constraint
