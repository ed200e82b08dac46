#include "rudder/constraint/schema_keywords.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <iterator>

namespace rudder::constraint {

namespace json = boost::json;

namespace {

enum class Operand : uint8_t {
  kAny,
  kType,
  kSchema,
  kSchemas,    // a list, not empty
  kSchemaMap,  // an object of schemas
  kItems,      // a schema, or the list of older drafts
  kList,       // not empty
  kStrings,
  kString,
  kBoolean,
  kNumber,
  kBound,  // a number, or draft 4's boolean
  kPositive,
  kCount,  // a whole number, 0 or more
};

struct Keyword {
  std::string_view name;
  Operand operand;
  KeywordInfo info;
};

constexpr KeywordInfo kAnnotation = {.annotation = true};
constexpr KeywordInfo kCore = {};
constexpr KeywordInfo kOfString = {.of = KeywordOf::kString};
constexpr KeywordInfo kOfNumber = {.of = KeywordOf::kNumber};
constexpr KeywordInfo kOfObject = {.of = KeywordOf::kObject};
constexpr KeywordInfo kOfArray = {.of = KeywordOf::kArray};

constexpr Keyword kKeywords[] = {
    {"$comment", Operand::kAny, kAnnotation},
    {"$defs", Operand::kSchemaMap, kAnnotation},
    {"$id", Operand::kString, kAnnotation},
    {"$ref", Operand::kString, kCore},
    {"$schema", Operand::kString, kAnnotation},
    {"additionalItems", Operand::kSchema, kOfArray},
    {"additionalProperties", Operand::kSchema, kOfObject},
    {"allOf", Operand::kSchemas, kCore},
    {"anyOf", Operand::kSchemas, kCore},
    {"const", Operand::kAny, kCore},
    {"contentEncoding", Operand::kAny, kAnnotation},
    {"contentMediaType", Operand::kAny, kAnnotation},
    {"default", Operand::kAny, kAnnotation},
    {"definitions", Operand::kSchemaMap, kAnnotation},
    {"deprecated", Operand::kAny, kAnnotation},
    {"description", Operand::kAny, kAnnotation},
    {"discriminator", Operand::kAny, kAnnotation},
    {"enum", Operand::kList, kCore},
    {"example", Operand::kAny, kAnnotation},
    {"examples", Operand::kAny, kAnnotation},
    {"exclusiveMaximum", Operand::kBound, kOfNumber},
    {"exclusiveMinimum", Operand::kBound, kOfNumber},
    {"externalDocs", Operand::kAny, kAnnotation},
    {"format", Operand::kString, kOfString},
    {"id", Operand::kString, kAnnotation},
    {"items", Operand::kItems, kOfArray},
    {"maxItems", Operand::kCount, kOfArray},
    {"maxLength", Operand::kCount, kOfString},
    {"maxProperties", Operand::kCount, kOfObject},
    {"maximum", Operand::kNumber, kOfNumber},
    {"minItems", Operand::kCount, kOfArray},
    {"minLength", Operand::kCount, kOfString},
    {"minProperties", Operand::kCount, kOfObject},
    {"minimum", Operand::kNumber, kOfNumber},
    {"multipleOf", Operand::kPositive, kOfNumber},
    {"nullable", Operand::kBoolean, kCore},
    {"oneOf", Operand::kSchemas, kCore},
    {"pattern", Operand::kString, kOfString},
    {"patternProperties", Operand::kSchemaMap, kOfObject},
    {"prefixItems", Operand::kSchemas, kOfArray},
    {"properties", Operand::kSchemaMap, kOfObject},
    {"propertyNames", Operand::kSchema, kOfObject},
    {"readOnly", Operand::kAny, kAnnotation},
    {"required", Operand::kStrings, kOfObject},
    {"title", Operand::kAny, kAnnotation},
    {"type", Operand::kType, kCore},
    {"uniqueItems", Operand::kBoolean, kOfArray},
    {"writeOnly", Operand::kAny, kAnnotation},
};

const Keyword* find(std::string_view name) {
  const auto* const found =
      std::find_if(std::begin(kKeywords), std::end(kKeywords),
                   [&](const Keyword& keyword) { return keyword.name == name; });
  return found == std::end(kKeywords) ? nullptr : found;
}

bool is_schema(const json::value& value) {
  return value.is_object() || value.is_bool();
}

bool is_type_name(const json::value& value) {
  constexpr std::string_view kTypes[] = {"string", "number",  "integer", "object",
                                         "array",  "boolean", "null"};
  return value.is_string() && std::find(std::begin(kTypes), std::end(kTypes),
                                        std::string_view(value.get_string())) != std::end(kTypes);
}

template <typename Test>
bool is_list_of(const json::value& value, const Test& test) {
  return value.is_array() && std::all_of(value.get_array().begin(), value.get_array().end(), test);
}

// What the operand must be; empty when it is that.
std::string_view expected(Operand operand, const json::value& value) {
  const auto want = [](bool ok, std::string_view what) { return ok ? std::string_view() : what; };
  const bool filled = !value.is_array() || !value.get_array().empty();
  const double number =
      value.is_number() ? value.to_number<double>() : std::numeric_limits<double>::quiet_NaN();
  switch (operand) {
    case Operand::kAny:
      return "";
    case Operand::kType:
      return want(is_type_name(value) || (is_list_of(value, is_type_name) && filled),
                  "the name of a type, or a list of them");
    case Operand::kSchema:
      return want(is_schema(value), "a schema (an object or a boolean)");
    case Operand::kSchemas:
      return want(is_list_of(value, is_schema) && filled, "a list of schemas that is not empty");
    case Operand::kSchemaMap:
      return want(value.is_object() &&
                      std::all_of(value.get_object().begin(), value.get_object().end(),
                                  [](const auto& field) { return is_schema(field.value()); }),
                  "an object of schemas");
    case Operand::kItems:
      return want(is_schema(value) || is_list_of(value, is_schema), "a schema");
    case Operand::kList:
      return want(value.is_array() && filled, "a list that is not empty");
    case Operand::kStrings:
      return want(is_list_of(value, [](const json::value& item) { return item.is_string(); }),
                  "a list of strings");
    case Operand::kString:
      return want(value.is_string(), "a string");
    case Operand::kBoolean:
      return want(value.is_bool(), "a boolean");
    case Operand::kNumber:
      return want(std::isfinite(number), "a number");
    case Operand::kBound:
      return want(std::isfinite(number) || value.is_bool(), "a number");
    case Operand::kPositive:
      return want(std::isfinite(number) && number > 0, "a number above 0");
    case Operand::kCount:
      return want(number >= 0 && number <= INT32_MAX && number == std::floor(number),
                  "a whole number between 0 and 2147483647");
  }
  return "";
}

}  // namespace

std::string path_to(const std::string& path, std::string_view key) {
  constexpr size_t kMaxKey = 64;
  return fmt::format("{}.{}", path, key.substr(0, kMaxKey));
}

std::string path_to(const std::string& path, size_t index) {
  return fmt::format("{}[{}]", path, index);
}

const KeywordInfo* keyword_info(std::string_view name) {
  constexpr static KeywordInfo kExtension = kAnnotation;
  if (name.starts_with("x-")) return &kExtension;  // OpenAPI's extensions
  const Keyword* keyword = find(name);
  return keyword == nullptr ? nullptr : &keyword->info;
}

Result<void> check_keywords(const json::object& schema, const std::string& path) {
  for (const auto& field : schema) {
    const std::string_view name = field.key();
    if (name.starts_with("x-")) continue;
    const Keyword* keyword = find(name);
    const auto bad = [&](std::string message) {
      return fail(ErrorCode::kInvalidArgument, std::move(message), path_to(path, name));
    };
    if (keyword == nullptr) return bad("is a keyword that is not supported");
    const std::string_view want = expected(keyword->operand, field.value());
    if (!want.empty()) return bad(fmt::format("must be {}", want));
    if (name == "uniqueItems" && field.value().get_bool()) {
      return bad("is not supported: a grammar cannot tell repeated items");
    }
  }
  return {};
}

}  // namespace rudder::constraint
