#include "rudder/constraint/schema_keywords.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "rudder/base/exact_json.h"

namespace rudder::constraint {

namespace json = boost::json;

namespace {

enum class Operand : uint8_t {
  kAny,
  kType,
  kSchema,
  kSchemas,      // a list, not empty
  kSchemaMap,    // an object of schemas
  kDefinitions,  // an object of schemas; what is none says nothing
  kItems,        // a schema, or the list of older drafts
  kList,         // not empty
  kStrings,
  kString,
  kBoolean,
  kNumber,
  kBound,  // a number, or draft 4's boolean
  kPositive,
  kCount,         // a whole number, 0 or more
  kNameLists,     // an object of lists of strings
  kDependencies,  // an object of lists of strings or schemas
  kUnsupported,   // whatever it is, it cannot be enforced
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
    // Of the normal form alone (schema_document.h).
    {kNoneOf, Operand::kUnsupported, kCore},
    {kConditions, Operand::kUnsupported, kCore},
    {kPatterns, Operand::kUnsupported, kOfString},
    {kNoPatterns, Operand::kUnsupported, kOfString},
    {kShapes, Operand::kUnsupported, kOfObject},
    {kContained, Operand::kUnsupported, kOfArray},
    {kUnique, Operand::kUnsupported, kOfString},
    {"$anchor", Operand::kString, kAnnotation},
    {"$comment", Operand::kAny, kAnnotation},
    {"$defs", Operand::kDefinitions, kAnnotation},
    {"$id", Operand::kString, kAnnotation},
    {"$dynamicRef", Operand::kUnsupported, kCore},
    {"$recursiveRef", Operand::kUnsupported, kCore},
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
    {"definitions", Operand::kDefinitions, kAnnotation},
    {"contains", Operand::kSchema, kOfArray},
    {"dependencies", Operand::kDependencies, kCore},
    {"dependentRequired", Operand::kNameLists, kCore},
    {"dependentSchemas", Operand::kSchemaMap, kCore},
    {"deprecated", Operand::kAny, kAnnotation},
    {"description", Operand::kAny, kAnnotation},
    {"discriminator", Operand::kAny, kAnnotation},
    {"disallow", Operand::kUnsupported, kCore},
    {"divisibleBy", Operand::kUnsupported, kOfNumber},
    {"else", Operand::kSchema, kCore},
    {"enum", Operand::kList, kCore},
    {"example", Operand::kAny, kAnnotation},
    {"examples", Operand::kAny, kAnnotation},
    {"exclusiveMaximum", Operand::kBound, kOfNumber},
    {"exclusiveMinimum", Operand::kBound, kOfNumber},
    {"extends", Operand::kUnsupported, kCore},
    {"externalDocs", Operand::kAny, kAnnotation},
    {"format", Operand::kString, kOfString},
    {"id", Operand::kAny, kAnnotation},
    {"if", Operand::kSchema, kCore},
    {"items", Operand::kItems, kOfArray},
    {"maxContains", Operand::kUnsupported, kOfArray},
    {"maxItems", Operand::kCount, kOfArray},
    {"maxLength", Operand::kCount, kOfString},
    {"maxProperties", Operand::kCount, kOfObject},
    {"maximum", Operand::kNumber, kOfNumber},
    {"minContains", Operand::kUnsupported, kOfArray},
    {"minItems", Operand::kCount, kOfArray},
    {"minLength", Operand::kCount, kOfString},
    {"minProperties", Operand::kCount, kOfObject},
    {"minimum", Operand::kNumber, kOfNumber},
    {"multipleOf", Operand::kPositive, kOfNumber},
    {"not", Operand::kSchema, kCore},
    {"nullable", Operand::kBoolean, kCore},
    {"oneOf", Operand::kSchemas, kCore},
    {"pattern", Operand::kString, kOfString},
    {"patternProperties", Operand::kSchemaMap, kOfObject},
    {"prefixItems", Operand::kSchemas, kOfArray},
    {"properties", Operand::kSchemaMap, kOfObject},
    {"propertyNames", Operand::kSchema, kOfObject},
    {"readOnly", Operand::kAny, kAnnotation},
    {"required", Operand::kStrings, kOfObject},
    {"then", Operand::kSchema, kCore},
    {"title", Operand::kAny, kAnnotation},
    {"type", Operand::kType, kCore},
    {"unevaluatedItems", Operand::kUnsupported, kOfArray},
    {"unevaluatedProperties", Operand::kSchema, kOfObject},
    {"uniqueItems", Operand::kBoolean, kOfArray},
    {"writeOnly", Operand::kAny, kAnnotation},
};

const Keyword* find(std::string_view name) {
  const auto* const found =
      std::find_if(std::begin(kKeywords), std::end(kKeywords),
                   [&](const Keyword& keyword) { return keyword.name == name; });
  return found == std::end(kKeywords) ? nullptr : found;
}

// Letters to change, add, leave out or swap with the next one, up to 3, between two names.
size_t edit_distance(std::string_view a, std::string_view b) {
  constexpr size_t kFar = 3;
  constexpr size_t kMost = 32;  // longer names are no keywords
  if (a.size() > b.size() + kFar || b.size() > a.size() + kFar) return kFar;
  if (a.size() >= kMost || b.size() >= kMost) return kFar;
  std::array<std::array<size_t, kMost>, kMost> cost = {};
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t k = 0; k <= b.size(); ++k) {
      if (i == 0 || k == 0) {
        cost[i][k] = i + k;
        continue;
      }
      cost[i][k] = std::min({cost[i - 1][k] + 1, cost[i][k - 1] + 1,
                             cost[i - 1][k - 1] + (a[i - 1] == b[k - 1] ? 0 : 1)});
      const bool swapped = i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1];
      if (swapped) cost[i][k] = std::min(cost[i][k], cost[i - 2][k - 2] + 1);
    }
  }
  return std::min(cost[a.size()][b.size()], kFar);
}

// The asserting keyword that a name is a slip of; empty when it is a name of its own.
std::string_view near_keyword(std::string_view name) {
  constexpr size_t kShortName = 6;  // below it, one letter is enough for another word
  // "_format", "@type": a mark in front says that another name is meant.
  const auto is_letter = [](char c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; };
  if (name.empty() || (!is_letter(name[0]) && name[0] != '$')) return "";
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return c >= 'A' && c <= 'Z' ? c | 0x20 : c; });
  for (const Keyword& keyword : kKeywords) {
    if (keyword.info.annotation || keyword.name[0] == '#') continue;
    constexpr size_t kMostAllowed = 2;
    if (lower.size() > keyword.name.size() + kMostAllowed) continue;
    if (keyword.name.size() > lower.size() + kMostAllowed) continue;
    std::string known(keyword.name);
    std::transform(known.begin(), known.end(), known.begin(),
                   [](unsigned char c) { return c >= 'A' && c <= 'Z' ? c | 0x20 : c; });
    const size_t allowed = known.size() < kShortName ? 0 : known.size() < 2 * kShortName ? 1 : 2;
    if (lower.size() > known.size() + allowed || known.size() > lower.size() + allowed) continue;
    if (edit_distance(lower, known) <= allowed) return keyword.name;
  }
  return "";
}

bool is_schema(const json::value& value) {
  return value.is_object() || value.is_bool();
}

bool is_type_name(const json::value& value) {
  constexpr std::string_view kTypes[] = {"string", "number",  "integer", "object",
                                         "array",  "boolean", "null"};
  return is_string(value) && std::find(std::begin(kTypes), std::end(kTypes),
                                       std::string_view(value.get_string())) != std::end(kTypes);
}

template <typename Test>
bool is_list_of(const json::value& value, const Test& test) {
  return value.is_array() && std::all_of(value.get_array().begin(), value.get_array().end(), test);
}

// Whether it is a number beyond Decimal::kMaxExponent, or a value of a list that has one.
bool has_endless_number(const json::value& value, std::string_view keyword) {
  const auto is_endless = [&](const json::value& one) { return has_endless_number(one, keyword); };
  const bool is_value = keyword == "const" || keyword == "enum";
  if (const json::array* list = is_value ? value.if_array() : nullptr) {
    return std::any_of(list->begin(), list->end(), is_endless);
  }
  if (const json::object* object = is_value ? value.if_object() : nullptr) {
    return std::any_of(object->begin(), object->end(),
                       [&](const auto& field) { return is_endless(field.value()); });
  }
  return is_number(value) && !decimal_of(value);
}

// What the operand must be; empty when it is that.
std::string_view expected(Operand operand, const json::value& value) {
  const auto want = [](bool ok, std::string_view what) { return ok ? std::string_view() : what; };
  const bool filled = !value.is_array() || !value.get_array().empty();
  const std::optional<Decimal> number = is_number(value) ? decimal_of(value) : std::nullopt;
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
    case Operand::kDefinitions:
      return want(value.is_object(), "an object of schemas");
    case Operand::kItems:
      return want(is_schema(value) || is_list_of(value, is_schema), "a schema");
    case Operand::kList:
      return want(value.is_array() && filled, "a list that is not empty");
    case Operand::kStrings:
      return want(is_list_of(value, is_string), "a list of strings");
    case Operand::kString:
      return want(is_string(value), "a string");
    case Operand::kBoolean:
      return want(value.is_bool(), "a boolean");
    case Operand::kNumber:
      return want(number.has_value(), "a number");
    case Operand::kBound:
      return want(number || value.is_bool(), "a number");
    case Operand::kPositive:
      return want(number && *number > Decimal(), "a number above 0");
    case Operand::kNameLists:
    case Operand::kDependencies: {
      const auto fits = [&](const auto& field) {
        if (operand == Operand::kDependencies && is_schema(field.value())) return true;
        return is_list_of(field.value(), is_string);
      };
      return want(value.is_object() &&
                      std::all_of(value.get_object().begin(), value.get_object().end(), fits),
                  operand == Operand::kNameLists ? "an object of lists of strings"
                                                 : "an object of lists of strings or schemas");
    }
    case Operand::kUnsupported:
      return "";  // refused before
    case Operand::kCount:
      return want(value.is_int64() && value.get_int64() >= 0 && value.get_int64() <= INT32_MAX,
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

KeywordInfo keyword_info(std::string_view name) {
  const Keyword* keyword = find(name);
  return keyword == nullptr ? kAnnotation : keyword->info;
}

bool is_keyword(std::string_view name) {
  return find(name) != nullptr;
}

Result<void> check_keywords(Fuel& fuel, const json::object& schema, const std::string& path) {
  constexpr int64_t kWorkOfKnown = 20;
  constexpr int64_t kWorkOfUnknown = 500;  // compared with every keyword
  for (const auto& field : schema) {
    const std::string_view name = field.key();
    const Keyword* keyword = find(name);
    if (!fuel.burn(keyword == nullptr ? kWorkOfUnknown : kWorkOfKnown)) {
      return tl::unexpected(fuel.error());
    }
    const auto bad = [&](std::string message) {
      return fail(ErrorCode::kInvalidArgument, std::move(message), path_to(path, name));
    };
    if (keyword == nullptr) {
      // Others may know more annotations; what looks like a keyword of ours is a mistake.
      const std::string_view meant = near_keyword(name);
      if (meant.empty()) continue;
      return bad(fmt::format("is not a keyword; is '{}' meant?", meant));
    }
    if (keyword->operand == Operand::kUnsupported) {
      return bad("is a keyword that is not supported");
    }
    if (!keyword->info.annotation && has_endless_number(field.value(), name)) {
      return bad("has a number of more than a million digits");
    }
    const std::string_view want = expected(keyword->operand, field.value());
    if (!want.empty()) return bad(fmt::format("must be {}", want));
  }
  return {};
}

}  // namespace rudder::constraint
