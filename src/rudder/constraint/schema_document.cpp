#include "rudder/constraint/schema_document.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <optional>
#include <utility>

#include "rudder/base/exact_json.h"
#include "rudder/constraint/schema_keywords.h"
#include "rudder/constraint/schema_merge.h"
#include "rudder/constraint/schema_references.h"
#include "rudder/constraint/string_formats.h"

namespace rudder::constraint {

namespace json = boost::json;

namespace {

constexpr size_t kMaxDepth = 64;  // of brackets, as in any request

// The list of drafts before 2020-12 in `items`. Whether there was one.
Result<bool> normalise_items(json::object& schema, const std::string& path) {
  const json::value* items = schema.if_contains("items");
  if (items == nullptr || !items->is_array()) {
    // Without such a list, it says nothing.
    schema.erase("additionalItems");
    return false;
  }
  if (schema.contains("prefixItems")) {
    return fail(ErrorCode::kInvalidArgument, "is a list, and so is prefixItems",
                path_to(path, "items"));
  }
  json::value first = std::move(schema.at("items"));
  json::value* more = schema.if_contains("additionalItems");
  if (more != nullptr) {
    json::value rest = std::move(*more);
    schema.erase("additionalItems");
    schema["items"] = std::move(rest);
  } else {
    schema.erase("items");
  }
  if (!first.get_array().empty()) schema["prefixItems"] = std::move(first);
  return true;
}

// `not` as kNoneOf; `if` and what depends on a property as kConditions.
void normalise_conditions(json::object& schema) {
  if (json::value* refused = schema.if_contains("not")) {
    json::array list;
    list.push_back(std::move(*refused));
    schema.erase("not");
    schema[kNoneOf] = std::move(list);
  }
  json::array conditions;
  const auto take = [&](std::string_view key) -> json::value {
    json::value* found = schema.if_contains(key);
    if (found == nullptr) return json::value(true);
    json::value taken = std::move(*found);
    schema.erase(key);
    return taken;
  };
  const bool asks = schema.contains("if");
  json::object condition = {{"if", take("if")}, {"then", take("then")}, {"else", take("else")}};
  if (asks) conditions.push_back(std::move(condition));
  for (const char* key : {"dependentRequired", "dependentSchemas", "dependencies"}) {
    const json::value depending = take(key);
    if (!depending.is_object()) continue;
    for (const auto& field : depending.get_object()) {
      json::array names;
      names.emplace_back(field.key());
      json::value then = field.value();
      if (then.is_array()) then = json::object({{"required", then}});
      conditions.push_back(
          json::object({{"if", json::object({{"type", "object"}, {"required", std::move(names)}})},
                        {"then", std::move(then)},
                        {"else", true}}));
    }
  }
  if (!conditions.empty()) schema[kConditions] = std::move(conditions);
}

// Draft 4's boolean beside an inclusive bound.
void normalise_bound(json::object& schema, std::string_view exclusive, std::string_view inclusive) {
  const json::value* flag = schema.if_contains(exclusive);
  if (flag == nullptr || !flag->is_bool()) return;
  const bool applies = flag->get_bool();
  schema.erase(exclusive);
  const json::value* bound = schema.if_contains(inclusive);
  if (!applies || bound == nullptr) return;
  json::value number = *bound;
  schema.erase(inclusive);
  schema[exclusive] = std::move(number);
}

// `pattern` as a list, so that schemas which bind together may have several.
void normalise_pattern(json::object& schema) {
  json::value* pattern = schema.if_contains("pattern");
  if (pattern == nullptr) return;
  json::array list;
  list.push_back(std::move(*pattern));
  schema.erase("pattern");
  schema[kPatterns] = std::move(list);
}

bool has_target(Fuel& fuel, const json::value& value) {
  fuel.burn(2);
  if (const json::object* object = value.if_object()) {
    return object->contains(kTarget) ||
           std::any_of(object->begin(), object->end(),
                       [&](const auto& field) { return has_target(fuel, field.value()); });
  }
  const json::array* list = value.if_array();
  return list != nullptr && std::any_of(list->begin(), list->end(), [&](const json::value& item) {
           return has_target(fuel, item);
         });
}

// What binds nothing and what no reference leads into: later stages copy schemas.
void drop_annotations(Fuel& fuel, json::object& schema) {
  std::vector<std::string> dropped;
  for (const auto& field : schema) {
    const std::string_view name = field.key();
    if (!keyword_info(name).annotation || name == "$defs" || name == "definitions") continue;
    if (!has_target(fuel, field.value())) dropped.emplace_back(name);
  }
  for (const std::string& name : dropped) schema.erase(name);
}

}  // namespace

struct SchemaDocument::Data {
  json::value root;
};

SchemaDocument::SchemaDocument() : data_(std::make_unique<Data>()) {}
SchemaDocument::SchemaDocument(SchemaDocument&&) noexcept = default;
SchemaDocument::~SchemaDocument() = default;

Result<SchemaDocument> SchemaDocument::parse(Fuel& fuel, std::string_view text) {
  RUDDER_TRY(json::value root, parse_json_exactly(text, "the schema", {.max_depth = kMaxDepth}));
  SchemaDocument document;
  document.data_->root = std::move(root);
  json::value& schema = document.data_->root;
  if (!fuel.hold(json_bytes(schema))) return tl::unexpected(fuel.error());
  if (!schema.is_object() && !schema.is_bool()) {
    return fail(ErrorCode::kInvalidArgument, "must be a schema (an object or a boolean)");
  }
  RUDDER_TRY_VOID(SchemaReferences(fuel, schema).make_pointers());
  RUDDER_TRY_VOID(document.normalise(fuel, schema, ""));
  return document;
}

const json::value& SchemaDocument::root() const {
  return data_->root;
}

void SchemaDocument::note_ignored(const json::object& schema, const std::string& path) {
  for (const auto& field : schema) {
    if (ignored_.size() == kMaxIgnored) return;
    const std::string_view name = field.key();
    const bool unknown_format = name == "format" && is_string(field.value()) &&
                                format_pattern(field.value().get_string()).empty();
    if (unknown_format || !is_keyword(name)) ignored_.push_back(path_to(path, name));
  }
}

Result<void> SchemaDocument::normalise(Fuel& fuel, json::value& schema, const std::string& path) {
  constexpr int64_t kWorkOfSchema = 40;
  constexpr int64_t kWorkOfField = 40;
  schemas_.insert(&schema);
  json::object* object = schema.if_object();
  const auto num_fields = object == nullptr ? 0 : static_cast<int64_t>(object->size());
  if (!fuel.burn(kWorkOfSchema + kWorkOfField * num_fields + std::ssize(path) / 8)) {
    return tl::unexpected(fuel.error());
  }
  if (object == nullptr) return {};
  object->erase(kTarget);
  RUDDER_TRY_VOID(check_keywords(fuel, *object, path));
  note_ignored(*object, path);
  drop_annotations(fuel, *object);
  RUDDER_TRY(const bool moved, normalise_items(*object, path));
  if (moved) had_item_list_.insert(&schema);
  normalise_conditions(*object);
  normalise_pattern(*object);
  if (const json::value* unique = object->if_contains("uniqueItems");
      unique != nullptr && !unique->get_bool()) {
    object->erase("uniqueItems");
  }
  normalise_bound(*object, "exclusiveMinimum", "minimum");
  normalise_bound(*object, "exclusiveMaximum", "maximum");
  // Nothing is added to the object from here on: the addresses of what is in it stay.
  return normalise_inside(fuel, *object, moved, path);
}

Result<void> SchemaDocument::normalise_inside(Fuel& fuel, json::object& object, bool moved,
                                              const std::string& path) {
  for (const char* key :
       {"additionalProperties", "contains", "items", "propertyNames", "unevaluatedProperties"}) {
    json::value* one = object.if_contains(key);
    const char* written = moved && key == std::string_view("items") ? "additionalItems" : key;
    if (one != nullptr) RUDDER_TRY_VOID(normalise(fuel, *one, path_to(path, written)));
  }
  if (json::value* none = object.if_contains(kNoneOf)) {
    RUDDER_TRY_VOID(normalise(fuel, none->get_array()[0], path_to(path, "not")));
  }
  if (json::value* conditions = object.if_contains(kConditions)) {
    for (json::value& condition : conditions->get_array()) {
      for (auto& field : condition.get_object()) {
        RUDDER_TRY_VOID(normalise(fuel, field.value(), path_to(path, field.key())));
      }
    }
  }
  for (const char* key : {"allOf", "anyOf", "oneOf", "prefixItems"}) {
    json::value* list = object.if_contains(key);
    if (list == nullptr) continue;
    const char* written = moved && key == std::string_view("prefixItems") ? "items" : key;
    for (size_t i = 0; i < list->get_array().size(); ++i) {
      RUDDER_TRY_VOID(normalise(fuel, list->get_array()[i], path_to(path_to(path, written), i)));
    }
  }
  for (const char* key : {"$defs", "definitions", "patternProperties", "properties"}) {
    json::value* map = object.if_contains(key);
    if (map == nullptr) continue;
    for (auto& field : map->get_object()) {
      if (!field.value().is_object() && !field.value().is_bool()) continue;  // of definitions
      RUDDER_TRY_VOID(normalise(fuel, field.value(), path_to(path_to(path, key), field.key())));
    }
  }
  for (auto& field : object) {
    if (is_keyword(field.key())) continue;
    RUDDER_TRY_VOID(normalise_targets(fuel, field.value(), path_to(path, field.key())));
  }
  return {};
}

Result<void> SchemaDocument::normalise_targets(Fuel& fuel, json::value& value,
                                               const std::string& path) {
  if (!fuel.burn(20 + std::ssize(path) / 8)) return tl::unexpected(fuel.error());
  json::object* object = value.if_object();
  if (object != nullptr && object->contains(kTarget)) return normalise(fuel, value, path);
  if (object != nullptr) {
    for (auto& field : *object) {
      RUDDER_TRY_VOID(normalise_targets(fuel, field.value(), path_to(path, field.key())));
    }
  } else if (json::array* list = value.if_array()) {
    for (size_t i = 0; i < list->size(); ++i) {
      RUDDER_TRY_VOID(normalise_targets(fuel, (*list)[i], path_to(path, i)));
    }
  }
  return {};
}

Result<const json::value*> SchemaDocument::resolve(std::string_view reference,
                                                   const std::string& path) const {
  const json::value& root = data_->root;
  const auto bad = [&](std::string_view why) {
    return fail(ErrorCode::kInvalidArgument, std::string(why), path_to(path, "$ref"));
  };
  if (reference == "#") return &root;
  if (!reference.starts_with("#/")) return bad("must point into the schema ('#/$defs/...')");
  const std::optional<std::vector<std::string>> keys = pointer_keys(reference);
  if (!keys) return bad("has a '%' without two hexadecimal digits");
  const json::value* at = &root;
  for (std::string key : *keys) {
    if (const json::object* object = at->if_object()) {
      if (had_item_list_.contains(at)) {
        if (key == "items") key = "prefixItems";
        if (key == "additionalItems") key = "items";
      }
      at = object->if_contains(key);
    } else if (const json::array* list = at->if_array()) {
      size_t index = list->size();
      std::from_chars(key.data(), key.data() + key.size(), index);
      at = index < list->size() ? &(*list)[index] : nullptr;
    } else {
      at = nullptr;
    }
    if (at == nullptr) return bad("points to nothing in the schema");
  }
  if (!schemas_.contains(at)) return bad("points to what is no schema");
  return at;
}

}  // namespace rudder::constraint
