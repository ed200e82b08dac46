#include "rudder/constraint/schema_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include "rudder/constraint/json_schema.h"
#include "rudder/constraint/schema_exclusion.h"
#include "rudder/constraint/schema_keywords.h"
#include "rudder/constraint/schema_merge.h"
#include "rudder/constraint/schema_parts.h"
#include "rudder/constraint/schema_unevaluated.h"
#include "rudder/constraint/schema_values.h"

namespace rudder::constraint {

namespace json = boost::json;

namespace {

using Node = RuleSet::Node;

constexpr int64_t kJoinedBytes = 100;  // of one that is known, beside its text
constexpr int kMaxSchemaDepth = 200;   // of schemas in schemas, joined and referred ones included

// Conditions, or schemas that must not hold, other than lists of values.
bool has_conditions(const json::object& schema) {
  if (schema.contains(kConditions)) return true;
  const json::value* refused = schema.if_contains(kNoneOf);
  return refused != nullptr &&
         !std::all_of(refused->get_array().begin(), refused->get_array().end(), lists_values);
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
  if (schema.contains(kUnique)) {
    RUDDER_TRY(const Node node, build_object_schema(without(schema, kUnique), path));
    const std::vector<std::string> types = types_of(schema);
    const bool is_string = std::ranges::find(types, "string") != types.end();
    return is_string ? unique_string(node, path) : unique_number(node);
  }
  if (schema.contains("const") || schema.contains("enum")) return build_listed(schema, path);
  if (const json::value* reference = schema.if_contains("$ref")) {
    if (num_binding(schema, "$ref") == 0) return build_reference(reference->get_string(), path);
    return build_together(schema, path);
  }
  if (schema.contains("allOf")) return build_together(schema, path);
  const bool has_ways = schema.contains("anyOf") || schema.contains("oneOf");
  if (schema.contains("unevaluatedProperties") && (has_ways || has_conditions(schema))) {
    const int64_t bytes = json_bytes(schema);
    const Held held(rules_.fuel(), bytes);
    if (!rules_.fuel().burn(bytes / 8)) return tl::unexpected(rules_.fuel().error());
    json::object closed = schema;
    if (close_object(rules_.fuel(), document_, closed)) return build_object_schema(closed, path);
    if (rules_.fuel().out()) return tl::unexpected(rules_.fuel().error());
  }
  if (has_conditions(schema)) return build_conditions(schema, path);
  if (schema.contains("anyOf")) return build_options(schema, "anyOf", path);
  if (schema.contains("oneOf")) return build_options(schema, "oneOf", path);
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

// `unevaluatedProperties` of a part does not see the other parts: alone, it is the same as
// `additionalProperties`.
Result<void> SchemaBuilder::close_part(json::value& part, const std::string& path) {
  if (!part.is_object() || !part.get_object().contains("unevaluatedProperties")) return {};
  if (close_object(rules_.fuel(), document_, part.get_object())) return {};
  if (rules_.fuel().out()) return tl::unexpected(rules_.fuel().error());
  return bad("is not supported where its schema is joined with others",
             path_to(path, "unevaluatedProperties"));
}

// $ref with something beside it, and allOf. What the same schemas come to is built once, which ends
// those that lead back to themselves.
Result<Node> SchemaBuilder::build_together(const json::object& schema, const std::string& path) {
  if (!rules_.fuel().burn(json_bytes(schema) / 3)) return tl::unexpected(rules_.fuel().error());
  // As text, which takes a tenth of the memory.
  std::string parts = json::serialize(without(schema, ""));
  if (const auto known = joined_.find(parts); known != joined_.end()) {
    Joined& joined = known->second;
    if (joined.node == rules_.nothing()) return rules_.nothing();
    if (joined.rule < 0) {
      joined.rule = rules_.add_rule();
      if (joined.node) rules_.define(joined.rule, *joined.node);
    }
    return rules_.rule(joined.rule);
  }
  if (!joined_bytes_.add(std::ssize(parts) + kJoinedBytes))
    return tl::unexpected(rules_.fuel().error());
  Joined& joined = joined_[std::move(parts)];
  RUDDER_TRY(const Node node, join(schema, path));
  joined.node = node;
  if (joined.rule < 0) return node;
  rules_.define(joined.rule, node);
  return rules_.rule(joined.rule);
}

Result<Node> SchemaBuilder::build_options(const json::object& schema, std::string_view keyword,
                                          const std::string& path) {
  const json::array& options = schema.at(keyword).get_array();
  json::object rest = without(schema, keyword);
  const json::value* unevaluated = schema.if_contains("unevaluatedProperties");
  rest.erase("unevaluatedProperties");
  const bool alone = num_binding(schema, keyword) == 0;
  const int64_t rest_bytes = json_bytes(rest);
  const Held held(rules_.fuel(), rest_bytes);
  if (!rules_.fuel().burn(rest_bytes / 8)) return tl::unexpected(rules_.fuel().error());
  const std::string list_path = path_to(path, keyword);
  if (keyword == "oneOf" && !exclude_all(options)) {
    if (rules_.fuel().out()) return tl::unexpected(rules_.fuel().error());
    const json::array objects = options_of_objects(options);
    const int64_t object_bytes = json_bytes(objects);
    const Held copies(rules_.fuel(), 2 * object_bytes);
    if (!rules_.fuel().burn(object_bytes / 8)) return tl::unexpected(rules_.fuel().error());
    if (objects.empty() || !exclude_all(objects)) return build_exactly_one(schema, path);
    json::object typed = schema;
    typed["oneOf"] = objects;
    return build(typed, path);
  }
  std::vector<Node> nodes;
  for (size_t i = 0; i < options.size(); ++i) {
    const std::string where = path_to(list_path, i);
    if (alone) {
      RUDDER_TRY(const Node node, build(options[i], where));
      nodes.push_back(node);
      continue;
    }
    const int64_t bytes = rest_bytes + json_bytes(options[i]);
    const Held copies(rules_.fuel(), bytes);
    if (!rules_.fuel().burn(bytes / 8)) return tl::unexpected(rules_.fuel().error());
    json::object both = {{"allOf", json::array({json::value(rest), options[i]})}};
    if (unevaluated != nullptr) both["unevaluatedProperties"] = *unevaluated;
    RUDDER_TRY(const Node node, build(both, where));
    nodes.push_back(node);
  }
  return rules_.choice(nodes);
}

// Of the values that are named, those that all other keywords allow.
Result<Node> SchemaBuilder::build_listed(const json::object& schema, const std::string& path) {
  const json::value* constant = schema.if_contains("const");
  const bool is_constant = constant != nullptr;
  const json::array values = is_constant ? json::array({*constant}) : schema.at("enum").get_array();
  const json::object others = without(schema, is_constant ? "const" : "enum");
  const int64_t bytes = json_bytes(schema);
  const Held held(rules_.fuel(), bytes);
  rules_.fuel().burn(bytes / 8);
  std::vector<Node> nodes;
  for (size_t i = 0; i < values.size(); ++i) {
    const Fit fit = values_.fit(others, values[i]);
    if (rules_.fuel().out()) return tl::unexpected(rules_.fuel().error());
    if (fit == Fit::kUnknown) {
      return bad(fmt::format("has a value of which it is not clear whether {} allows it: leave it "
                             "out or the keyword",
                             values_.unclear()),
                 path_to(path, is_constant ? "const" : "enum"));
    }
    if (fit == Fit::kYes) nodes.push_back(text_.constant(values[i]));
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
  const bool is_container = type == "object" || type == "array";
  if (any && is_container) {
    return bad(fmt::format("of values of the type '{}' is not supported", type),
               path_to(path, "not"));
  }
  if (type == "object") return build_object(schema, path);
  if (type == "array") return build_array(schema, path);
  return build_number(type, schema, refused, path);
}

// What all of them accept. One alone is built where it stands.
Result<Node> SchemaBuilder::build_all_of(const std::vector<const json::value*>& parts,
                                         const std::string& path) {
  if (parts.empty()) return text_.value();
  if (parts.size() == 1) return build(*parts[0], path);
  int64_t bytes = 0;
  for (const json::value* part : parts) bytes += json_bytes(*part);
  const Held held(rules_.fuel(), bytes);
  if (!rules_.fuel().burn(bytes / 8)) return tl::unexpected(rules_.fuel().error());
  json::array all;
  for (const json::value* part : parts) all.push_back(*part);
  return build(json::object({{"allOf", std::move(all)}}), path);
}

std::vector<std::string> ignored_in_schema(std::string_view schema) {
  Fuel fuel(Fuel::kRequestWork);
  const Result<SchemaDocument> document = SchemaDocument::parse(fuel, schema);
  return document ? document->ignored() : std::vector<std::string>();
}

Result<Node> build_json_schema(RuleSet& rules, std::string_view schema, JsonSpace space) {
  RUDDER_TRY(const SchemaDocument document, SchemaDocument::parse(rules.fuel(), schema));
  return SchemaBuilder(rules, space, document).build(document.root(), "");
}

}  // namespace rudder::constraint
