#include "rudder/constraint/schema_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <utility>

#include "rudder/constraint/json_schema.h"
#include "rudder/constraint/number_range.h"
#include "rudder/constraint/pattern.h"
#include "rudder/constraint/schema_complement.h"
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
  return keyword_info(key).annotation;
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

// The types that a schema names; none where it names none, and where none is left.
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
  // An integer is a number too.
  if (std::find(types.begin(), types.end(), "number") != types.end()) {
    std::erase(types, "integer");
  }
  return types;
}

// A format that is enforced. Others are annotations, as the specification has them.
const json::value* known_format(const json::object& schema) {
  const json::value* format = schema.if_contains("format");
  return format == nullptr || format_pattern(format->get_string()).empty() ? nullptr : format;
}

// A schema that names its values, and says nothing else.
bool lists_values(const json::value& schema) {
  const json::object* object = schema.if_object();
  return object != nullptr && (object->contains("enum") || object->contains("const")) &&
         num_binding(*object, object->contains("enum") ? "enum" : "const") == 0;
}

// Conditions, or schemas that must not hold, other than lists of values.
bool has_conditions(const json::object& schema) {
  if (schema.contains(kConditions)) return true;
  const json::value* refused = schema.if_contains(kNoneOf);
  return refused != nullptr &&
         !std::all_of(refused->get_array().begin(), refused->get_array().end(), lists_values);
}

// The values that kNoneOf lists.
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
  if (has_conditions(schema)) return build_conditions(schema, path);
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

bool SchemaBuilder::exclude_all(const json::array& options) {
  for (size_t i = 0; i < options.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      if (!exclude_each_other(rules_.fuel(), document_, options[k], options[i])) return false;
    }
  }
  return true;
}

// Options of oneOf that may hold together: each without the others.
Result<Node> SchemaBuilder::build_exactly_one(const json::object& schema, const std::string& path) {
  const json::array& options = schema.at("oneOf").get_array();
  const std::string list_path = path_to(path, "oneOf");
  std::vector<Node> nodes;
  for (size_t i = 0; i < options.size(); ++i) {
    json::array together = {without(schema, "oneOf"), options[i]};
    for (size_t k = 0; k < options.size(); ++k) {
      if (k == i || exclude_each_other(rules_.fuel(), document_, options[k], options[i])) continue;
      auto other = complement(rules_.fuel(), document_, options[k], path_to(list_path, k));
      if (!other) {
        if (rules_.fuel().out()) return tl::unexpected(rules_.fuel().error());
        return bad(fmt::format("may hold for the same value as option {}, which a grammar cannot "
                               "tell: use anyOf, or give each its own `const` of a required "
                               "property",
                               std::min(i, k)),
                   path_to(list_path, std::max(i, k)));
      }
      together.push_back(std::move(*other));
    }
    RUDDER_TRY(const Node node,
               build(json::object({{"allOf", std::move(together)}}), path_to(list_path, i)));
    nodes.push_back(node);
  }
  return rules_.choice(nodes);
}

// What a schema must not be, and what follows from a condition, as schemas that bind together with
// the rest. Lists of values that must not be stay, for who builds the types.
Result<Node> SchemaBuilder::build_conditions(const json::object& schema, const std::string& path) {
  Fuel& fuel = rules_.fuel();
  json::object rest = without(schema, kNoneOf);
  rest.erase(kConditions);
  json::array parts;
  json::array values;
  if (const json::value* refused = schema.if_contains(kNoneOf)) {
    const std::string where = path_to(path, "not");
    for (const json::value& one : refused->get_array()) {
      if (lists_values(one)) {
        values.push_back(one);
        continue;
      }
      RUDDER_TRY(json::value other, complement(fuel, document_, one, where));
      parts.push_back(std::move(other));
    }
  }
  if (const json::value* conditions = schema.if_contains(kConditions)) {
    for (const json::value& one : conditions->get_array()) {
      const json::object& condition = one.get_object();
      RUDDER_TRY(json::value other,
                 complement(fuel, document_, condition.at("if"), path_to(path, "if")));
      json::array then = {condition.at("if"), condition.at("then")};
      json::array otherwise = {std::move(other), condition.at("else")};
      json::array ways;
      ways.emplace_back(json::object({{"allOf", std::move(then)}}));
      ways.emplace_back(json::object({{"allOf", std::move(otherwise)}}));
      parts.emplace_back(json::object({{"anyOf", std::move(ways)}}));
    }
  }
  if (!values.empty()) rest[kNoneOf] = std::move(values);
  parts.emplace(parts.begin(), std::move(rest));
  return build(json::object({{"allOf", std::move(parts)}}), path);
}

Result<Node> SchemaBuilder::build_options(const json::object& schema, std::string_view keyword,
                                          const std::string& path) {
  const json::array& options = schema.at(keyword).get_array();
  const json::object rest = without(schema, keyword);
  const bool alone = num_binding(schema, keyword) == 0;
  const std::string list_path = path_to(path, keyword);
  if (keyword == "oneOf" && !exclude_all(options)) {
    if (rules_.fuel().out()) return tl::unexpected(rules_.fuel().error());
    return build_exactly_one(schema, path);
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
    if (key == kNoneOf || is_annotation(key)) continue;
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
  const json::array refused = refused_values(schema);
  std::vector<Node> nodes;
  for (const json::value& value : values) {
    if (lists_value(refused, value)) continue;
    const bool fits =
        types.empty() || std::any_of(types.begin(), types.end(), [&](const std::string& type) {
          return value_has_type(value, type);
        });
    if (fits) nodes.push_back(text_.constant(value));
  }
  return rules_.choice(nodes);
}

Result<Node> SchemaBuilder::build_types(const json::object& schema, const std::string& path) {
  std::vector<std::string> types = types_of(schema);
  if (types.empty()) {
    if (schema.contains("type")) return rules_.nothing();
    // A keyword binds the values of its type; others are valid whatever they are.
    if (num_binding(schema, "nullable") == 0) return text_.value();
    types = {"object", "array", "string", "number", "boolean", "null"};
  }
  std::vector<Node> nodes;
  for (const std::string& type : types) {
    RUDDER_TRY(const Node node, build_type(type, schema, path));
    nodes.push_back(node);
  }
  return rules_.choice(nodes);
}

Result<Node> SchemaBuilder::build_type(std::string_view type, const json::object& schema,
                                       const std::string& path) {
  const json::array refused = refused_values(schema);
  const auto refuses = [&](const json::value& value) { return lists_value(refused, value); };
  if (type == "boolean") {
    std::vector<Node> ways;
    for (const bool value : {true, false}) {
      if (!refuses(value)) ways.push_back(text_.constant(value));
    }
    return rules_.choice(ways);
  }
  if (type == "null") return refuses(nullptr) ? rules_.nothing() : text_.null();
  if (type == "string") return build_string(schema, refused, path);
  const bool any = std::any_of(refused.begin(), refused.end(), [&](const json::value& value) {
    return value_has_type(value, type);
  });
  if (any && type != "integer") {
    return bad(fmt::format("of values of the type '{}' is not supported", type),
               path_to(path, "not"));
  }
  if (type == "object") return build_object(schema, path);
  if (type == "array") return build_array(schema, path);
  return build_number(schema, path, type == "integer");
}

Result<Node> SchemaBuilder::build_string(const json::object& schema, const json::array& refused,
                                         const std::string& path) {
  const PatternBounds bounds = {.min_length = length_or(schema, "minLength", 0),
                                .max_length = length_or(schema, "maxLength", RuleSet::kUnbounded)};
  if (bounds.max_length != RuleSet::kUnbounded && bounds.max_length < bounds.min_length) {
    return rules_.nothing();
  }
  const json::value* pattern = schema.if_contains("pattern");
  const json::value* format = known_format(schema);
  std::vector<std::string> others;
  for (const json::value& value : refused) {
    if (value.is_string()) others.emplace_back(value.get_string());
  }
  if (!others.empty()) {
    if (pattern != nullptr || format != nullptr || schema.contains("minLength") ||
        schema.contains("maxLength")) {
      return bad("of strings is not supported beside other keywords of strings",
                 path_to(path, "not"));
    }
    return text_.string_other_than(others);
  }
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
  const json::array refused = refused_values(schema);
  if (multiple == nullptr && !refused.empty()) return integers_other_than(low, high, refused);
  if (multiple == nullptr) {
    return low || high ? integer_range(rules_, low, high) : text_.integer();
  }
  if (std::any_of(refused.begin(), refused.end(),
                  [](const auto& one) { return one.is_number(); })) {
    return bad("of numbers is not supported beside multipleOf", path_to(path, "not"));
  }
  auto node = multiples(rules_, divisor, low, high);
  if (!node) return bad(node.error().message, path_to(path, "multipleOf"));
  return node;
}

// The ranges between the values.
Node SchemaBuilder::integers_other_than(std::optional<int64_t> low, std::optional<int64_t> high,
                                        const json::array& refused) {
  std::vector<int64_t> values;
  for (const json::value& value : refused) {
    if (value_has_type(value, "integer") && std::abs(value.to_number<double>()) < kMaxWhole) {
      values.push_back(static_cast<int64_t>(value.to_number<double>()));
    }
  }
  std::sort(values.begin(), values.end());
  std::vector<Node> ways;
  for (const int64_t value : values) {
    if ((low && value < *low) || (high && value > *high)) continue;
    if (!low || value - 1 >= *low) ways.push_back(integer_range(rules_, low, value - 1));
    low = value + 1;
  }
  if (!low || !high || *low <= *high) ways.push_back(integer_range(rules_, low, high));
  return rules_.choice(ways);
}

Result<Node> build_json_schema(RuleSet& rules, std::string_view schema, JsonSpace space) {
  RUDDER_TRY(const SchemaDocument document, SchemaDocument::parse(schema));
  return SchemaBuilder(rules, space, document).build(document.root(), "");
}

}  // namespace rudder::constraint
