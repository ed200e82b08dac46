#include "rudder/constraint/schema_document.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/constraint/schema_keywords.h"

namespace rudder::constraint {

namespace json = boost::json;

namespace {

constexpr size_t kMaxDepth = 64;  // of brackets, as in any request

}  // namespace

struct SchemaDocument::Data {
  json::value root;
};

SchemaDocument::SchemaDocument() : data_(std::make_unique<Data>()) {}
SchemaDocument::SchemaDocument(SchemaDocument&&) noexcept = default;
SchemaDocument::~SchemaDocument() = default;

Result<SchemaDocument> SchemaDocument::parse(std::string_view text) {
  RUDDER_TRY(json::value root, parse_json(text, "the schema", {.max_depth = kMaxDepth}));
  SchemaDocument document;
  document.data_->root = std::move(root);
  const json::value& schema = document.data_->root;
  if (!schema.is_object() && !schema.is_bool()) {
    return fail(ErrorCode::kInvalidArgument, "must be a schema (an object or a boolean)");
  }
  RUDDER_TRY_VOID(document.check(schema, ""));
  return document;
}

const json::value& SchemaDocument::root() const {
  return data_->root;
}

Result<void> SchemaDocument::check(const json::value& schema, const std::string& path) {
  schemas_.insert(&schema);
  const json::object* object = schema.if_object();
  if (object == nullptr) return {};
  RUDDER_TRY_VOID(check_keywords(*object, path));
  for (const char* key : {"additionalItems", "additionalProperties", "items", "propertyNames"}) {
    const json::value* one = object->if_contains(key);
    if (one != nullptr && !one->is_array()) RUDDER_TRY_VOID(check(*one, path_to(path, key)));
  }
  for (const char* key : {"allOf", "anyOf", "items", "oneOf", "prefixItems"}) {
    const json::value* list = object->if_contains(key);
    if (list == nullptr || !list->is_array()) continue;
    for (size_t i = 0; i < list->get_array().size(); ++i) {
      RUDDER_TRY_VOID(check(list->get_array()[i], path_to(path_to(path, key), i)));
    }
  }
  for (const char* key : {"$defs", "definitions", "patternProperties", "properties"}) {
    const json::value* map = object->if_contains(key);
    if (map == nullptr) continue;
    for (const auto& field : map->get_object()) {
      RUDDER_TRY_VOID(check(field.value(), path_to(path_to(path, key), field.key())));
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
  const json::value* at = &root;
  for (size_t i = 2; i <= reference.size();) {
    const size_t end = std::min(reference.find('/', i), reference.size());
    std::string key;
    for (size_t k = i; k < end; ++k) {
      const char c = reference[k];
      if (c == '~' && k + 1 < end && (reference[k + 1] == '0' || reference[k + 1] == '1')) {
        key.push_back(reference[++k] == '0' ? '~' : '/');
      } else if (c == '%' && k + 2 < end) {
        unsigned value = 0;
        const char* from = reference.data() + k + 1;
        if (std::from_chars(from, from + 2, value, 16).ptr != from + 2) {
          return bad("has a '%' without two hexadecimal digits");
        }
        key.push_back(static_cast<char>(value));
        k += 2;
      } else {
        key.push_back(c);
      }
    }
    if (const json::object* object = at->if_object()) {
      at = object->if_contains(key);
    } else if (const json::array* list = at->if_array()) {
      size_t index = list->size();
      std::from_chars(key.data(), key.data() + key.size(), index);
      at = index < list->size() ? &(*list)[index] : nullptr;
    } else {
      at = nullptr;
    }
    if (at == nullptr) return bad("points to nothing in the schema");
    i = end + 1;
  }
  if (!schemas_.contains(at)) return bad("points to what is no schema");
  return at;
}

}  // namespace rudder::constraint
