// What SchemaBuilder makes of oneOf with options that overlap, and of conditions: schemas joined
// with complements of others.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include "rudder/constraint/schema_builder.h"
#include "rudder/constraint/schema_complement.h"
#include "rudder/constraint/schema_exclusion.h"
#include "rudder/constraint/schema_keywords.h"
#include "rudder/constraint/schema_merge.h"
#include "rudder/constraint/schema_parts.h"
#include "rudder/constraint/schema_unique_kinds.h"

namespace rudder::constraint {

namespace json = boost::json;

namespace {

using Node = RuleSet::Node;

// The objects that the schema accepts.
json::value objects_of(const SchemaDocument& document, const json::value& schema) {
  constexpr int kMaxChain = 8;
  const json::value object = json::object({{"type", "object"}});
  const json::value* at = &schema;
  for (int i = 0; i < kMaxChain && at->is_object() && at->get_object().size() == 1; ++i) {
    const json::value* reference = at->get_object().if_contains("$ref");
    if (reference == nullptr) break;
    const auto target = document.resolve(reference->get_string(), "");
    if (!target) break;
    at = *target;
  }
  if (at->is_bool()) return at->get_bool() ? object : *at;
  if (at->get_object().contains("$ref")) return json::object({{"allOf", {object, schema}}});
  json::object typed = at->get_object();
  const json::value* type = typed.if_contains("type");
  if (type != nullptr && common_types(*type, "object").empty()) return false;
  typed.erase("nullable");
  typed["type"] = "object";
  return typed;
}

// The ways one by one, where complements of parts have theirs in lists.
void add_ways(const json::value& way, json::array& out) {
  const json::object* list = way.if_object();
  if (list == nullptr || list->size() != 1 || !list->contains("anyOf")) {
    out.push_back(way);
    return;
  }
  for (const json::value& one : list->at("anyOf").get_array()) add_ways(one, out);
}

bool is_about_objects(const json::value& way) {
  const json::value* type = way.is_object() ? way.get_object().if_contains("type") : nullptr;
  return type != nullptr && *type == "object";
}

// Of the ways in which a rival does not hold, those that values of the option may take: all of
// them, but where every object of it takes the same one, other ways of objects add nothing.
Complement ways_of_option(Fuel& fuel, const SchemaDocument& document, const json::value& option,
                          const Complement& other) {
  json::array ways;
  for (const json::value& way : other.ways) add_ways(way, ways);
  const json::value* least = nullptr;  // of those that every object takes
  for (const json::value& way : ways) {
    const bool is_shorter = least == nullptr || json_bytes(way) < json_bytes(*least);
    if (is_about_objects(way) && is_shorter && objects_take(fuel, document, option, way)) {
      least = &way;
    }
  }
  Complement taken;
  for (const json::value& way : ways) {
    if (least != nullptr && is_about_objects(way) && &way != least) continue;
    if (!exclude_each_other(fuel, document, option, way)) taken.ways.push_back(way);
  }
  return taken;
}

}  // namespace

bool SchemaBuilder::exclude_all(const json::array& options) {
  for (size_t i = 0; i < options.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      if (!exclude_each_other(rules_.fuel(), document_, options[k], options[i])) return false;
    }
  }
  return true;
}

// What is no object is refused where two options accept it: the options are then about objects
// alone. Empty where that is not so.
json::array SchemaBuilder::options_of_objects(const json::array& options) const {
  const auto num_open = std::count_if(
      options.begin(), options.end(),
      [&](const json::value& option) { return binds_objects_alone(document_, option); });
  json::array objects;
  if (num_open < 2) return objects;
  for (const json::value& option : options) objects.push_back(objects_of(document_, option));
  return objects;
}

tl::unexpected<Error> SchemaBuilder::unclear_unevaluated(const std::string& path) const {
  return bad(
      "is not supported beside conditions, and options that may hold together, which name fields",
      path_to(path, "unevaluatedProperties"));
}

// The values that no other option accepts.
Result<json::array> SchemaBuilder::values_of_option(const json::array& options, size_t index,
                                                    const json::array& values,
                                                    const std::string& path) {
  json::array own;
  for (const json::value& value : values) {
    bool is_own = true;
    for (size_t k = 0; is_own && k < options.size(); ++k) {
      const Fit fit = k == index ? Fit::kNo : values_.fit(options[k], value);
      if (rules_.fuel().out()) return tl::unexpected(rules_.fuel().error());
      if (fit == Fit::kUnknown) return overlapping(index, k, path);
      is_own = fit == Fit::kNo;
    }
    if (is_own) own.push_back(value);
  }
  return own;
}

// Options of oneOf that may hold together: each without the others.
Result<Node> SchemaBuilder::build_exactly_one(const json::object& schema, const std::string& path) {
  if (schema.contains("unevaluatedProperties")) return unclear_unevaluated(path);
  Fuel& fuel = rules_.fuel();
  const json::array& options = schema.at("oneOf").get_array();
  const std::string list_path = path_to(path, "oneOf");
  const json::object rest = without(schema, "oneOf");
  const int64_t rest_bytes = json_bytes(rest);
  std::vector<Node> nodes;
  for (size_t i = 0; i < options.size(); ++i) {
    const int64_t bytes = rest_bytes + json_bytes(options[i]);
    Held held(fuel, bytes);
    if (!fuel.burn(bytes / 8)) return tl::unexpected(fuel.error());
    json::array together = {rest, options[i]};
    const json::object* option = referred(document_, options[i]).schema;
    if (const auto values = option == nullptr ? std::nullopt : few_values(*option)) {
      RUDDER_TRY(json::array own, values_of_option(options, i, *values, list_path));
      if (own.empty()) continue;
      together.emplace_back(json::object({{"enum", std::move(own)}}));
      RUDDER_TRY(const Node node,
                 build(json::object({{"allOf", std::move(together)}}), path_to(list_path, i)));
      nodes.push_back(node);
      continue;
    }
    const KnownFields fields = known_fields(document_, options[i]);
    for (size_t k = 0; k < options.size(); ++k) {
      if (k == i || exclude_each_other(fuel, document_, options[k], options[i])) continue;
      auto other = complement(fuel, document_, options[k], path_to(list_path, k), fields);
      if (fuel.out()) return tl::unexpected(fuel.error());
      if (!other) return overlapping(i, k, list_path);
      Complement taken = ways_of_option(fuel, document_, options[i], *other);
      if (taken.ways.empty() && !other->exact) return overlapping(i, k, list_path);
      if (!other->exact) rules_.narrow(list_path);
      together.push_back(std::move(taken).any());
      if (!held.add(json_bytes(together.back()))) return tl::unexpected(fuel.error());
    }
    RUDDER_TRY(const Node node,
               build(json::object({{"allOf", std::move(together)}}), path_to(list_path, i)));
    nodes.push_back(node);
  }
  return rules_.choice(nodes);
}

tl::unexpected<Error> SchemaBuilder::overlapping(size_t one, size_t other,
                                                 const std::string& path) const {
  return bad(fmt::format("may hold for the same value as option {}, which a grammar cannot tell: "
                         "use anyOf, or give each its own `const` of a required property",
                         std::min(one, other)),
             path_to(path, std::max(one, other)));
}

// What a schema must not be, and what follows from a condition, as schemas that bind together with
// the rest. Lists of values that must not be stay, for who builds the types.
Result<Node> SchemaBuilder::build_conditions(const json::object& schema, const std::string& path) {
  Fuel& fuel = rules_.fuel();
  if (schema.contains("unevaluatedProperties")) return unclear_unevaluated(path);
  const int64_t bytes = json_bytes(schema);
  Held held(fuel, bytes);  // the parts: all of the schema, and complements
  if (!fuel.burn(bytes / 3)) return tl::unexpected(fuel.error());
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
      RUDDER_TRY(Complement other, complement(fuel, document_, one, where));
      if (!other.exact) rules_.narrow(where);
      if (!held.add(json_bytes(other.ways))) return tl::unexpected(fuel.error());
      parts.push_back(std::move(other).any());
    }
  }
  if (const json::value* conditions = schema.if_contains(kConditions)) {
    for (const json::value& one : conditions->get_array()) {
      const json::object& condition = one.get_object();
      RUDDER_TRY(Complement other,
                 complement(fuel, document_, condition.at("if"), path_to(path, "if")));
      if (!other.exact) rules_.narrow(path_to(path, "if"));
      if (!held.add(json_bytes(other.ways))) return tl::unexpected(fuel.error());
      json::array then = {condition.at("if"), condition.at("then")};
      json::array otherwise = {std::move(other).any(), condition.at("else")};
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

}  // namespace rudder::constraint
