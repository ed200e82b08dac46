// SchemaBuilder's objects and arrays.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <boost/json.hpp>
#include <utility>

#include "rudder/constraint/pattern.h"
#include "rudder/constraint/schema_builder.h"
#include "rudder/constraint/schema_keywords.h"
#include "rudder/constraint/schema_merge.h"
#include "rudder/text/regex.h"

namespace rudder::constraint {

namespace json = boost::json;

namespace {

using Node = RuleSet::Node;

constexpr size_t kMaxKeyBytes = 512;
// Places in an object times the counts that they are told apart by.
constexpr int64_t kMaxChain = 20'000;
// Arrays' limits above it are beyond what a context holds.
constexpr int64_t kMaxItems = 100'000;

int64_t count_or(const json::object& schema, std::string_view key, int64_t otherwise) {
  const json::value* value = schema.if_contains(key);
  return value == nullptr ? otherwise : static_cast<int64_t>(value->to_number<double>());
}

}  // namespace

Result<std::vector<SchemaBuilder::Property>> SchemaBuilder::build_properties(
    const json::object& schema, const std::string& path) {
  std::vector<Property> properties;
  const auto add = [&](std::string_view name, const json::value& value,
                       const std::string& where) -> Result<void> {
    if (name.size() > kMaxKeyBytes) {
      return bad(fmt::format("a key has more than {} bytes", kMaxKeyBytes), path);
    }
    RUDDER_TRY(const Node node, build(value, where));
    const Node field = rules_.sequence({text_.quoted(name), text_.colon(), node});
    properties.push_back({.name = std::string(name), .node = rules_.share(field)});
    return {};
  };
  if (const json::value* fields = schema.if_contains("properties")) {
    for (const auto& field : fields->get_object()) {
      const std::string where = path_to(path_to(path, "properties"), field.key());
      RUDDER_TRY_VOID(add(field.key(), field.value(), where));
    }
  }
  const json::value* required = schema.if_contains("required");
  if (required == nullptr) return properties;
  for (const json::value& value : required->get_array()) {
    const std::string_view name = value.get_string();
    auto property = std::find_if(properties.begin(), properties.end(),
                                 [&](const Property& known) { return known.name == name; });
    if (property == properties.end()) {
      // Required and without a schema of its own: what additional ones must be.
      const json::value* more = schema.if_contains("additionalProperties");
      if (schema.contains("patternProperties") || schema.contains("propertyNames")) {
        return bad(fmt::format("names '{}', which is not in properties", name.substr(0, 64)),
                   path_to(path, "required"));
      }
      const json::value any = more == nullptr ? json::value(true) : *more;
      RUDDER_TRY_VOID(add(name, any, path_to(path, "additionalProperties")));
      property = std::prev(properties.end());
    }
    property->required = true;
  }
  return properties;
}

Result<Node> SchemaBuilder::build_key(const json::value& schema, const std::string& path) {
  if (schema.is_bool()) return schema.get_bool() ? text_.string() : rules_.nothing();
  json::object strings = schema.get_object();
  const json::value* type = strings.if_contains("type");
  const bool is_string = type == nullptr || *type == "string";
  const bool plain = !strings.contains("$ref") && !strings.contains("allOf") &&
                     !strings.contains("anyOf") && !strings.contains("oneOf");
  if (!is_string || !plain) {
    return bad("is supported for pattern, lengths, format, const and enum of strings alone", path);
  }
  strings["type"] = "string";
  return build(strings, path);
}

Result<Node> SchemaBuilder::build_additional(const json::object& schema,
                                             const std::vector<Property>& properties,
                                             const std::string& path) {
  const json::value* more = schema.if_contains("additionalProperties");
  const json::value* patterns = schema.if_contains("patternProperties");
  const json::value* names = schema.if_contains("propertyNames");
  const auto pair = [&](Node key, Node value) {
    return rules_.share(rules_.sequence({key, text_.colon(), value}));
  };
  if (patterns != nullptr && !patterns->get_object().empty()) {
    const std::string where = path_to(path, "patternProperties");
    if (names != nullptr) return bad("together with propertyNames is not supported", where);
    if (patterns->get_object().size() > 1) {
      return bad("is not supported with more than one pattern, since a key may match several",
                 where);
    }
    if (more != nullptr && !(more->is_bool() && !more->get_bool())) {
      return bad("is not supported with additional properties other than false", where);
    }
    const auto& field = *patterns->get_object().begin();
    const std::string at = path_to(where, field.key());
    auto key = build_pattern(rules_, field.key(), PatternUse::kJsonString);
    if (!key) return bad(key.error().message, at);
    RUDDER_TRY(const text::Regex regex, text::Regex::compile(field.key(), at));
    for (const Property& property : properties) {
      bool matches = false;
      RUDDER_TRY_VOID(regex.for_each_match(property.name, [&](size_t, size_t) { matches = true; }));
      if (matches) {
        return bad(fmt::format("matches the property '{}', which is not supported",
                               property.name.substr(0, 64)),
                   at);
      }
    }
    RUDDER_TRY(const Node value, build(field.value(), at));
    return pair(*key, value);
  }
  // With properties named and nothing said, there are no others.
  const bool open = more != nullptr ? !more->is_bool() || more->get_bool() : properties.empty();
  if (!open) return rules_.nothing();
  Node key = text_.string();
  if (names != nullptr) {
    const std::string where = path_to(path, "propertyNames");
    if (!properties.empty()) return bad("together with properties is not supported", where);
    RUDDER_TRY(key, build_key(*names, where));
  } else if (!properties.empty()) {
    std::vector<std::string> taken;
    for (const Property& property : properties) taken.push_back(property.name);
    key = text_.string_other_than(taken);
  }
  const json::value any = true;
  RUDDER_TRY(const Node value,
             build(more != nullptr ? *more : any, path_to(path, "additionalProperties")));
  return pair(key, value);
}

Result<Node> SchemaBuilder::build_object(const json::object& schema, const std::string& path) {
  RUDDER_TRY(const std::vector<Property> properties, build_properties(schema, path));
  RUDDER_TRY(const Node additional, build_additional(schema, properties, path));
  const int64_t min = count_or(schema, "minProperties", 0);
  const int64_t max = count_or(schema, "maxProperties", RuleSet::kUnbounded);
  const auto num_required = std::count_if(properties.begin(), properties.end(),
                                          [](const Property& one) { return one.required; });
  if (min > std::max<int64_t>(1, num_required) && additional != rules_.nothing()) {
    return bad(
        "is not supported above 1 with additional properties: a grammar cannot tell "
        "repeated keys",
        path_to(path, "minProperties"));
  }
  if (max != RuleSet::kUnbounded && max < std::max<int64_t>(min, num_required)) {
    return rules_.nothing();
  }
  RUDDER_TRY(const Node fields, chain(properties, additional, min, max, path));
  if (fields == rules_.nothing()) return fields;
  return rules_.share(
      rules_.sequence({rules_.literal("{"), text_.inside(), fields, rules_.literal("}")}));
}

// The fields in their order, with commas between them. A state is the next property and how many
// fields there are already, as far as that matters: none or some, and up to the counts asked for.
Result<Node> SchemaBuilder::chain(const std::vector<Property>& properties, Node additional,
                                  int64_t min, int64_t max, const std::string& path) {
  const auto num_properties = static_cast<int64_t>(properties.size());
  const bool bounded = max != RuleSet::kUnbounded;
  if (bounded && additional == rules_.nothing()) max = std::min(max, num_properties);
  const int64_t counts = std::max<int64_t>({1, min, bounded ? max : 0});
  if (counts * (num_properties + 1) > kMaxChain) {
    return bad("is too complex: too many properties to be counted", path);
  }
  // What may follow after all properties, when `count` fields are there. Counts are exact below
  // `counts`, which stands for itself and everything above where there is no maximum.
  const auto end = [&](int64_t count) {
    if (additional == rules_.nothing()) {
      if (count < min) return rules_.nothing();
      return count == 0 ? rules_.empty() : text_.inside();
    }
    const Node another = rules_.sequence({text_.comma(), additional});
    const auto room =
        bounded ? static_cast<int32_t>(max - std::max<int64_t>(count, 1)) : RuleSet::kUnbounded;
    if (count > 0) return rules_.sequence({rules_.repeat(another, 0, room), text_.inside()});
    if (bounded && max == 0) return rules_.empty();
    const Node some =
        rules_.sequence({additional, rules_.repeat(another, 0, room), text_.inside()});
    return min > 0 ? some : rules_.optional(some);
  };
  std::vector<Node> after;  // by count: what follows
  for (int64_t count = 0; count <= counts; ++count) after.push_back(end(count));
  for (int64_t i = num_properties - 1; i >= 0; --i) {
    const Property& property = properties[static_cast<size_t>(i)];
    std::vector<Node> here;
    for (int64_t count = 0; count <= std::min(counts, i); ++count) {
      std::vector<Node> ways;
      if (!bounded || count < max) {
        const Node rest = after[static_cast<size_t>(std::min(count + 1, counts))];
        const Node field =
            count == 0 ? property.node : rules_.sequence({text_.comma(), property.node});
        ways.push_back(rules_.sequence({field, rest}));
      }
      if (!property.required) ways.push_back(after[static_cast<size_t>(count)]);
      const Node state = rules_.choice(ways);
      // A state that more than one other leads to is written once.
      here.push_back(i > 0 ? rules_.share(state) : state);
    }
    after = std::move(here);
    after.resize(static_cast<size_t>(counts) + 1, rules_.nothing());
  }
  return after[0];
}

// Items of a short list, each at most once: a rule for each set of those that were there.
Result<Node> SchemaBuilder::build_unique(const json::object& schema, const std::string& path) {
  constexpr size_t kMaxValues = 8;
  const auto unsupported = [&] {
    return bad(fmt::format("is supported for items of an enum of at most {} values alone: a "
                           "grammar cannot tell repeated items",
                           kMaxValues),
               path_to(path, "uniqueItems"));
  };
  const json::value* items = schema.if_contains("items");
  for (int i = 0; items != nullptr && items->is_object() && i < 8; ++i) {
    const json::value* reference = items->get_object().if_contains("$ref");
    if (reference == nullptr) break;
    RUDDER_TRY(items, document_.resolve(reference->get_string(), path_to(path, "items")));
  }
  if (items == nullptr || !items->is_object() || schema.contains("prefixItems")) {
    return unsupported();
  }
  const json::value* list = items->get_object().if_contains("enum");
  if (list == nullptr) return unsupported();
  std::vector<Node> values;  // one for each value that the items may be
  json::array distinct;
  for (const json::value& value : list->get_array()) {
    if (lists_value(distinct, value)) continue;
    distinct.push_back(value);
    json::object one = items->get_object();
    one["enum"] = json::array({value});
    RUDDER_TRY(const Node node, build(one, path_to(path, "items")));
    if (node != rules_.nothing()) values.push_back(node);
    if (values.size() > kMaxValues) return unsupported();
  }
  const int64_t min = count_or(schema, "minItems", 0);
  const int64_t max = count_or(schema, "maxItems", static_cast<int64_t>(values.size()));
  // From the full set to the empty one: what may follow when these values were there.
  std::vector<Node> after(size_t{1} << values.size());
  for (size_t set = after.size(); set-- > 0;) {
    const auto count = static_cast<int64_t>(std::popcount(set));
    std::vector<Node> ways;
    if (count >= min) ways.push_back(count > 0 ? text_.inside() : rules_.empty());
    for (size_t i = 0; count < max && i < values.size(); ++i) {
      if ((set >> i & 1) != 0) continue;
      const Node item = count > 0 ? rules_.sequence({text_.comma(), values[i]}) : values[i];
      ways.push_back(rules_.sequence({item, after[set | size_t{1} << i]}));
    }
    after[set] = rules_.share(rules_.choice(ways));
  }
  return rules_.sequence({rules_.literal("["), text_.inside(), after[0], rules_.literal("]")});
}

Result<Node> SchemaBuilder::build_array(const json::object& schema, const std::string& path) {
  if (schema.contains("uniqueItems") && count_or(schema, "maxItems", 2) > 1) {
    return build_unique(schema, path);
  }
  const json::array none;
  const json::value* items = schema.if_contains("items");
  const json::value* prefix = schema.if_contains("prefixItems");
  const std::string prefix_path = path_to(path, "prefixItems");
  const std::string items_path = path_to(path, "items");
  const json::array& first = prefix == nullptr ? none : prefix->get_array();
  const int64_t min = count_or(schema, "minItems", 0);
  int64_t max = count_or(schema, "maxItems", RuleSet::kUnbounded);
  if (min > kMaxItems)
    return bad(fmt::format("must be at most {}", kMaxItems), path_to(path, "minItems"));
  // With the first items named and nothing said, there are no others.
  Node rest = rules_.nothing();
  if (items != nullptr) {
    RUDDER_TRY(rest, build(*items, items_path));
  } else if (first.empty()) {
    rest = text_.value();
  }
  const auto num_first = static_cast<int64_t>(first.size());
  if (rest == rules_.nothing()) max = max < 0 ? num_first : std::min(max, num_first);
  if (max >= 0 && max < min) return rules_.nothing();
  // From the last place to the first: what may come when `i` items are there.
  Node after = text_.inside();
  if (rest != rules_.nothing() && (max < 0 || max > num_first)) {
    const Node another = rules_.sequence({text_.comma(), rest});
    const auto least = static_cast<int32_t>(std::max<int64_t>(0, min - num_first));
    const auto most = static_cast<int32_t>(max < 0 ? RuleSet::kUnbounded : max - num_first);
    if (num_first > 0) {
      after = rules_.sequence({rules_.repeat(another, least, most), text_.inside()});
    } else {
      const Node some = rules_.sequence(
          {rest, rules_.repeat(another, std::max(least - 1, 0), most < 0 ? most : most - 1),
           text_.inside()});
      after = least == 0 ? rules_.optional(some) : some;
    }
  } else if (num_first == 0 || max == 0) {
    after = rules_.empty();
  }
  const int64_t places = max < 0 ? num_first : std::min(num_first, max);
  for (int64_t i = places - 1; i >= 0; --i) {
    const auto index = static_cast<size_t>(i);
    RUDDER_TRY(const Node item, build(first[index], path_to(prefix_path, index)));
    std::vector<Node> with = {item, after};
    if (i > 0) with.insert(with.begin(), text_.comma());
    std::vector<Node> ways = {rules_.sequence(with)};
    if (i >= min) ways.push_back(i > 0 ? text_.inside() : rules_.empty());
    after = rules_.share(rules_.choice(ways));
  }
  return rules_.share(
      rules_.sequence({rules_.literal("["), text_.inside(), after, rules_.literal("]")}));
}

}  // namespace rudder::constraint
