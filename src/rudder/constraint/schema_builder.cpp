#include "rudder/constraint/schema_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <utility>

#include "rudder/constraint/json_schema.h"
#include "rudder/constraint/number_range.h"
#include "rudder/constraint/pattern.h"
#include "rudder/constraint/schema_keywords.h"
#include "rudder/constraint/schema_merge.h"
#include "rudder/constraint/string_formats.h"

namespace rudder::constraint {

namespace json = boost::json;

namespace {

using Node = RuleSet::Node;

constexpr int kMaxSchemaDepth = 200;  // of schemas in schemas, joined and referred ones included
constexpr double kMaxBound = 1e14;    // of numbers, see number_range
constexpr double kMaxWhole = 1e18;    // of whole numbers

bool is_annotation(std::string_view key) {
  const KeywordInfo* info = keyword_info(key);
  return info != nullptr && info->annotation;
}

// Keywords that bind, apart from `but`.
size_t num_binding(const json::object& schema, std::string_view but) {
  return static_cast<size_t>(std::count_if(schema.begin(), schema.end(), [&](const auto& field) {
    return field.key() != but && !is_annotation(field.key());
  }));
}

json::object without(const json::object& schema, std::string_view key) {
  json::object rest = schema;
  rest.erase(key);
  return rest;
}

bool value_has_type(const json::value& value, std::string_view type) {
  if (type == "string") return value.is_string();
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "boolean") return value.is_bool();
  if (type == "null") return value.is_null();
  if (type == "number") return value.is_number();
  return value.is_number() && value.to_number<double>() == std::floor(value.to_number<double>());
}

// The types that a schema is about: those it names; with none named, those that its keywords are
// about; all, if there is no such keyword.
std::vector<std::string> types_of(const json::object& schema) {
  std::vector<std::string> types;
  if (const json::value* type = schema.if_contains("type")) {
    if (type->is_string()) {
      types.emplace_back(type->get_string());
    } else {
      for (const json::value& name : type->get_array()) types.emplace_back(name.get_string());
    }
    const json::value* nullable = schema.if_contains("nullable");
    if (nullable != nullptr && nullable->get_bool()) types.emplace_back("null");
  } else {
    constexpr std::pair<KeywordOf, const char*> kTypes[] = {{KeywordOf::kString, "string"},
                                                            {KeywordOf::kNumber, "number"},
                                                            {KeywordOf::kObject, "object"},
                                                            {KeywordOf::kArray, "array"}};
    for (const auto& [of, name] : kTypes) {
      const bool any = std::any_of(schema.begin(), schema.end(), [&, of = of](const auto& field) {
        const KeywordInfo* info = keyword_info(field.key());
        return info != nullptr && !info->annotation && info->of == of;
      });
      if (any) types.emplace_back(name);
    }
  }
  // An integer is a number too.
  if (std::find(types.begin(), types.end(), "number") != types.end()) {
    std::erase(types, "integer");
  }
  return types;
}

int32_t length_or(const json::object& schema, std::string_view key, int32_t otherwise) {
  const json::value* value = schema.if_contains(key);
  return value == nullptr ? otherwise : static_cast<int32_t>(value->to_number<double>());
}

}  // namespace

tl::unexpected<Error> SchemaBuilder::bad(std::string message, std::string where) const {
  return fail(ErrorCode::kInvalidArgument, std::move(message), std::move(where));
}

Result<Node> SchemaBuilder::build(const json::value& schema, const std::string& path) {
  if (schema.is_bool()) return schema.get_bool() ? text_.value() : rules_.nothing();
  constexpr int64_t kWorkOfSchema = 100;
  if (!rules_.fuel().burn(kWorkOfSchema)) return tl::unexpected(rules_.fuel().error());
  if (++depth_ > kMaxSchemaDepth) {
    return bad("goes round without an end: schemas that bind together refer to themselves", path);
  }
  Result<Node> node = build_object_schema(schema.get_object(), path);
  --depth_;
  return node;
}

Result<Node> SchemaBuilder::build_object_schema(const json::object& schema,
                                                const std::string& path) {
  if (const json::value* reference = schema.if_contains("$ref")) {
    if (num_binding(schema, "$ref") == 0) return build_reference(reference->get_string(), path);
    return build_together(schema, path);
  }
  if (schema.contains("allOf")) return build_together(schema, path);
  if (schema.contains("anyOf")) return build_options(schema, "anyOf", path);
  if (schema.contains("oneOf")) return build_options(schema, "oneOf", path);
  if (schema.contains("const") || schema.contains("enum")) return build_listed(schema, path);
  return build_types(schema, path);
}

// A rule of its own for each target, which is what makes recursion possible.
Result<Node> SchemaBuilder::build_reference(std::string_view reference, const std::string& path) {
  RUDDER_TRY(const json::value* target, document_.resolve(reference, path));
  const auto [known, is_new] = references_.try_emplace(target, 0);
  if (!is_new) return rules_.rule(known->second);
  const int32_t rule = rules_.add_rule();
  known->second = rule;
  RUDDER_TRY(const Node body, build(*target, path_to(path, "$ref")));
  rules_.define(rule, body);
  return rules_.rule(rule);
}

// $ref with something beside it, and allOf: one schema of all parts.
Result<Node> SchemaBuilder::build_together(const json::object& schema, const std::string& path) {
  json::value whole;
  std::vector<std::pair<json::value, std::string>> parts;
  if (const json::value* reference = schema.if_contains("$ref")) {
    RUDDER_TRY(const json::value* target, document_.resolve(reference->get_string(), path));
    parts.emplace_back(*target, path_to(path, "$ref"));
    whole = without(schema, "$ref");
  } else {
    const json::array& list = schema.at("allOf").get_array();
    if (list.size() == 1 && num_binding(schema, "allOf") == 0) {
      return build(list[0], path_to(path_to(path, "allOf"), 0));
    }
    for (size_t i = 0; i < list.size(); ++i) {
      parts.emplace_back(list[i], path_to(path_to(path, "allOf"), i));
    }
    whole = without(schema, "allOf");
  }
  for (auto& [part, where] : parts) {
    // What a part refers to is looked up before it is joined; a chain of references ends by depth.
    for (int i = 0; part.is_object() && part.get_object().contains("$ref"); ++i) {
      if (i == kMaxSchemaDepth) return bad("goes round without an end", where);
      const json::value reference = part.get_object().at("$ref");
      RUDDER_TRY(const json::value* target, document_.resolve(reference.get_string(), where));
      const json::object rest = without(part.get_object(), "$ref");
      RUDDER_TRY(part, merge_schemas(rules_.fuel(), *target, rest, where));
    }
    RUDDER_TRY(whole, merge_schemas(rules_.fuel(), whole, part, where));
  }
  const int64_t bytes = json_bytes(whole);
  if (!rules_.fuel().hold(bytes)) return tl::unexpected(rules_.fuel().error());
  Result<Node> node = build(whole, path);
  rules_.fuel().release(bytes);
  return node;
}

Result<Node> SchemaBuilder::build_options(const json::object& schema, std::string_view keyword,
                                          const std::string& path) {
  const json::array& options = schema.at(keyword).get_array();
  const json::object rest = without(schema, keyword);
  const bool alone = num_binding(schema, keyword) == 0;
  const std::string list_path = path_to(path, keyword);
  if (keyword == "oneOf") {
    for (size_t i = 0; i < options.size(); ++i) {
      for (size_t k = 0; k < i; ++k) {
        if (exclude_each_other(rules_.fuel(), document_, options[k], options[i])) continue;
        if (rules_.fuel().out()) return tl::unexpected(rules_.fuel().error());
        return bad(fmt::format("may hold for the same value as option {}, which a grammar cannot "
                               "tell: use anyOf, or give each its own `const` of a required "
                               "property",
                               k),
                   path_to(list_path, i));
      }
    }
  }
  std::vector<Node> nodes;
  for (size_t i = 0; i < options.size(); ++i) {
    const std::string where = path_to(list_path, i);
    if (alone) {
      RUDDER_TRY(const Node node, build(options[i], where));
      nodes.push_back(node);
      continue;
    }
    const json::object both = {{"allOf", json::array({json::value(rest), options[i]})}};
    RUDDER_TRY(const Node node, build(both, where));
    nodes.push_back(node);
  }
  return rules_.choice(nodes);
}

Result<Node> SchemaBuilder::build_listed(const json::object& schema, const std::string& path) {
  for (const auto& field : schema) {
    const std::string_view key = field.key();
    if (key == "const" || key == "enum" || key == "type" || key == "nullable") continue;
    if (is_annotation(key)) continue;
    return bad("together with const or enum is not supported: leave out the values instead",
               path_to(path, key));
  }
  const json::value* constant = schema.if_contains("const");
  const json::value* list = schema.if_contains("enum");
  json::array values = constant != nullptr ? json::array({*constant}) : list->get_array();
  if (constant != nullptr && list != nullptr &&
      std::find(list->get_array().begin(), list->get_array().end(), *constant) ==
          list->get_array().end()) {
    values.clear();
  }
  const std::vector<std::string> types = types_of(schema);
  std::vector<Node> nodes;
  for (const json::value& value : values) {
    const bool fits =
        types.empty() || std::any_of(types.begin(), types.end(), [&](const std::string& type) {
          return value_has_type(value, type);
        });
    if (fits) nodes.push_back(text_.constant(value));
  }
  return rules_.choice(nodes);
}

Result<Node> SchemaBuilder::build_types(const json::object& schema, const std::string& path) {
  const std::vector<std::string> types = types_of(schema);
  if (types.empty()) return schema.contains("type") ? rules_.nothing() : text_.value();
  std::vector<Node> nodes;
  for (const std::string& type : types) {
    RUDDER_TRY(const Node node, build_type(type, schema, path));
    nodes.push_back(node);
  }
  return rules_.choice(nodes);
}

Result<Node> SchemaBuilder::build_type(std::string_view type, const json::object& schema,
                                       const std::string& path) {
  if (type == "object") return build_object(schema, path);
  if (type == "array") return build_array(schema, path);
  if (type == "string") return build_string(schema, path);
  if (type == "boolean") return text_.boolean();
  if (type == "null") return text_.null();
  return build_number(schema, path, type == "integer");
}

Result<Node> SchemaBuilder::build_string(const json::object& schema, const std::string& path) {
  const PatternBounds bounds = {.min_length = length_or(schema, "minLength", 0),
                                .max_length = length_or(schema, "maxLength", RuleSet::kUnbounded)};
  if (bounds.max_length != RuleSet::kUnbounded && bounds.max_length < bounds.min_length) {
    return rules_.nothing();
  }
  const json::value* pattern = schema.if_contains("pattern");
  const json::value* format = schema.if_contains("format");
  if (pattern == nullptr && format == nullptr) {
    if (bounds.min_length == 0 && bounds.max_length == RuleSet::kUnbounded) return text_.string();
    return text_.string(bounds.min_length, bounds.max_length);
  }
  std::string text;
  if (format != nullptr) {
    const std::string_view name = format->get_string();
    if (pattern != nullptr)
      return bad("together with pattern is not supported", path_to(path, "format"));
    text = format_pattern(name);
    if (text.empty()) {
      return bad(
          fmt::format("'{}' is not supported; known are {}", name.substr(0, 64), known_formats()),
          path_to(path, "format"));
    }
  } else {
    text = pattern->get_string();
  }
  auto node = build_pattern(rules_, text, PatternUse::kJsonString, bounds);
  if (!node) {
    Error error = node.error();
    error.where = path_to(path, pattern != nullptr ? "pattern" : "format");
    return tl::unexpected(std::move(error));
  }
  return node;
}

Result<Node> SchemaBuilder::build_number(const json::object& schema, const std::string& path,
                                         bool integer) {
  const auto bound = [&](const char* inclusive, const char* exclusive,
                         double sign) -> std::optional<NumberBound> {
    std::optional<NumberBound> tightest;
    for (const bool is_exclusive : {false, true}) {
      const json::value* value = schema.if_contains(is_exclusive ? exclusive : inclusive);
      if (value == nullptr) continue;
      const double number = value->to_number<double>();
      if (!tightest || number * sign > tightest->value * sign ||
          (number == tightest->value && is_exclusive)) {
        tightest = NumberBound{.value = number + 0.0, .exclusive = is_exclusive};  // no -0.0
      }
    }
    return tightest;
  };
  const auto min = bound("minimum", "exclusiveMinimum", 1);
  const auto max = bound("maximum", "exclusiveMaximum", -1);
  const json::value* multiple = schema.if_contains("multipleOf");
  int64_t divisor = 1;
  if (multiple != nullptr) {
    const double value = multiple->to_number<double>();
    if (value != std::floor(value) || value > kMaxWhole) {
      return bad("is not supported other than whole numbers", path_to(path, "multipleOf"));
    }
    divisor = static_cast<int64_t>(value);
    integer = true;  // multiples of whole numbers are whole
  }
  const double most = integer ? kMaxWhole : kMaxBound;
  for (const auto& [side, name] : {std::pair(min, "minimum"), std::pair(max, "maximum")}) {
    if (side && std::abs(side->value) > most) {
      return bad(fmt::format("a bound above {:g} is not supported", most), path_to(path, name));
    }
  }
  if (min && max &&
      (min->value > max->value ||
       (min->value == max->value && (min->exclusive || max->exclusive)))) {
    return rules_.nothing();
  }
  if (!integer) {
    return min || max ? number_range(rules_, min, max) : text_.number();
  }
  std::optional<int64_t> low;
  std::optional<int64_t> high;
  if (min) {
    low = static_cast<int64_t>(std::ceil(min->value));
    if (min->exclusive && std::ceil(min->value) == min->value) ++*low;
  }
  if (max) {
    high = static_cast<int64_t>(std::floor(max->value));
    if (max->exclusive && std::floor(max->value) == max->value) --*high;
  }
  if (multiple == nullptr) {
    return low || high ? integer_range(rules_, low, high) : text_.integer();
  }
  auto node = multiples(rules_, divisor, low, high);
  if (!node) return bad(node.error().message, path_to(path, "multipleOf"));
  return node;
}

Result<Node> build_json_schema(RuleSet& rules, std::string_view schema, JsonSpace space) {
  RUDDER_TRY(const SchemaDocument document, SchemaDocument::parse(schema));
  return SchemaBuilder(rules, space, document).build(document.root(), "");
}

}  // namespace rudder::constraint
