#include "rudder/constraint/schema_unevaluated.h"

#include <algorithm>
#include <boost/json.hpp>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "rudder/constraint/schema_keywords.h"

namespace rudder::constraint {

namespace json = boost::json;

namespace {

// Looks for fields that are named in schemas that bind the same value.
class FieldNames {
 public:
  FieldNames(Fuel& fuel, const SchemaDocument& document) : fuel_(fuel), document_(document) {}

  // Whether other keywords of the schema than those about fields lead to such a name.
  bool are_behind(const json::object& schema) {
    if (const json::value* reference = schema.if_contains("$ref")) {
      const auto target = document_.resolve(reference->get_string(), "");
      if (!target) return true;
      if (seen_.insert(*target).second && are_in(**target)) return true;
    }
    for (const char* key : {"allOf", "anyOf", "oneOf"}) {
      const json::value* list = schema.if_contains(key);
      if (list != nullptr && any_in(list->get_array())) return true;
    }
    const json::value* conditions = schema.if_contains(kConditions);
    return conditions != nullptr &&
           std::ranges::any_of(conditions->get_array(), [&](const json::value& condition) {
             const json::object& parts = condition.get_object();
             return std::any_of(parts.begin(), parts.end(),
                                [&](const auto& part) { return are_in(part.value()); });
           });
  }

 private:
  bool any_in(const json::array& schemas) {
    return std::ranges::any_of(schemas, [&](const json::value& schema) { return are_in(schema); });
  }
  bool are_in(const json::value& schema) {
    constexpr int64_t kWorkOfSchema = 20;
    if (!fuel_.burn(kWorkOfSchema)) return true;
    const json::object* object = schema.if_object();
    if (object == nullptr) return false;
    const auto about_fields = {std::string_view("properties"),
                               std::string_view("patternProperties"),
                               std::string_view("additionalProperties"),
                               std::string_view("unevaluatedProperties"), kShapes};
    return std::ranges::any_of(about_fields,
                               [&](std::string_view key) { return object->contains(key); }) ||
           are_behind(*object);
  }

  Fuel& fuel_;
  const SchemaDocument& document_;
  std::unordered_set<const json::value*> seen_;  // targets of references
};

}  // namespace

bool close_object(Fuel& fuel, const SchemaDocument& document, json::object& schema) {
  if (FieldNames(fuel, document).are_behind(schema) || fuel.out()) return false;
  json::value rest = std::move(schema.at("unevaluatedProperties"));
  schema.erase("unevaluatedProperties");
  if (!schema.contains("additionalProperties")) schema["additionalProperties"] = std::move(rest);
  return true;
}

}  // namespace rudder::constraint
