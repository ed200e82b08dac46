// Objects of SchemaBuilder.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <boost/json.hpp>
#include <utility>

#include "rudder/constraint/schema_builder.h"
#include "rudder/constraint/schema_keywords.h"
#include "rudder/constraint/schema_parts.h"
#include "rudder/constraint/string_form.h"
#include "rudder/constraint/text_counts.h"

namespace rudder::constraint {

namespace json = boost::json;

namespace {

using Node = RuleSet::Node;

constexpr size_t kMaxKeyBytes = 512;
// Fields of an object times the counts that they are told apart by.
constexpr int64_t kMaxChain = 20'000;
constexpr size_t kMaxPatterns = 16;  // of keys

// What the schema says of fields by their names: itself, or the parts that it was joined from.
std::vector<const json::object*> shapes_of(const json::object& schema) {
  const json::value* list = schema.if_contains(kShapes);
  if (list == nullptr) return {&schema};
  std::vector<const json::object*> shapes;
  for (const json::value& shape : list->get_array()) shapes.push_back(&shape.get_object());
  return shapes;
}

const json::object& fields_of(const json::object& shape, std::string_view key) {
  static const json::object none;
  const json::value* fields = shape.if_contains(key);
  return fields == nullptr ? none : fields->get_object();
}

}  // namespace

Result<std::vector<SchemaBuilder::Property>> SchemaBuilder::build_properties(
    const json::object& schema, const std::string& path) {
  std::vector<Property> properties;
  const auto add = [&](std::string_view name, const std::string& where) -> Result<void> {
    if (name.size() > kMaxKeyBytes) {
      return bad(fmt::format("a key has more than {} bytes", kMaxKeyBytes), path);
    }
    RUDDER_TRY(const Node node, build_field(schema, name, where));
    const Node field = rules_.sequence({text_.quoted(name), text_.colon(), node});
    properties.push_back({.name = std::string(name), .node = rules_.share(field)});
    return {};
  };
  const std::vector<const json::object*> shapes = shapes_of(schema);
  for (size_t i = 0; i < shapes.size(); ++i) {
    for (const auto& field : fields_of(*shapes[i], "properties")) {
      const auto end = shapes.begin() + static_cast<std::ptrdiff_t>(i);
      const bool is_known = std::any_of(shapes.begin(), end, [&](const json::object* earlier) {
        return fields_of(*earlier, "properties").contains(field.key());
      });
      if (is_known) continue;
      RUDDER_TRY_VOID(add(field.key(), path_to(path_to(path, "properties"), field.key())));
    }
  }
  const json::value* required = schema.if_contains("required");
  if (required == nullptr) return properties;
  for (const json::value& value : required->get_array()) {
    const std::string_view name = value.get_string();
    if (!rules_.fuel().burn(std::ssize(properties) / 4)) {
      return tl::unexpected(rules_.fuel().error());
    }
    auto property = std::find_if(properties.begin(), properties.end(),
                                 [&](const Property& known) { return known.name == name; });
    if (property == properties.end()) {
      RUDDER_TRY_VOID(add(name, path_to(path, "additionalProperties")));
      property = std::prev(properties.end());
    }
    property->required = true;
  }
  return properties;
}

// The value of a field whose name is known: all that the schema says of it.
Result<Node> SchemaBuilder::build_field(const json::object& schema, std::string_view name,
                                        const std::string& path) {
  std::vector<const json::value*> parts;
  for (const json::object* shape : shapes_of(schema)) {
    const json::value* own = fields_of(*shape, "properties").if_contains(name);
    Fit covered = own != nullptr ? Fit::kYes : Fit::kNo;
    for (const auto& pattern : fields_of(*shape, "patternProperties")) {
      const Fit has = values_.matches(std::string(pattern.key()), name);
      covered = std::max(covered, has);
      // Where dialects differ, both what is said of matches and of others holds.
      if (has != Fit::kNo) parts.push_back(&pattern.value());
    }
    const json::value* more = additional_of(*shape);
    if (covered != Fit::kYes && more != nullptr) parts.push_back(more);
    if (own != nullptr) parts.push_back(own);
  }
  const json::value* names = schema.if_contains("propertyNames");
  if (names != nullptr && values_.fit(*names, json::string(name)) != Fit::kYes) {
    return rules_.nothing();
  }
  if (rules_.fuel().out()) return tl::unexpected(rules_.fuel().error());
  return build_all_of(parts, path);
}

const json::value* SchemaBuilder::additional_of(const json::object& schema) {
  const json::value* more = schema.if_contains("additionalProperties");
  return more != nullptr ? more : schema.if_contains("unevaluatedProperties");
}

// Keys that match each expression of `patterns` whose bit is in `set` and none of the others, and
// that are not those of properties.
Result<Node> SchemaBuilder::build_key(const json::object& schema, uint32_t set,
                                      const std::vector<std::string>& patterns,
                                      const std::vector<Property>& properties,
                                      const std::string& path) {
  const json::value* names = schema.if_contains("propertyNames");
  std::vector<std::string> taken;
  taken.reserve(properties.size());
  for (const Property& property : properties) taken.push_back(property.name);
  if (patterns.empty() && names == nullptr) {
    return taken.empty() ? text_.string() : text_.string_other_than(taken);
  }
  json::array has;
  json::array has_not;
  for (size_t i = 0; i < patterns.size(); ++i) {
    ((set >> i & 1) != 0 ? has : has_not).emplace_back(patterns[i]);
  }
  if (!taken.empty()) has_not.emplace_back(pattern_of_values(taken));
  json::object key = {{"type", "string"}};
  if (!has.empty()) key[kPatterns] = std::move(has);
  if (!has_not.empty()) key[kNoPatterns] = std::move(has_not);
  if (names != nullptr) key = {{"allOf", json::array({*names, json::value(std::move(key))})}};
  return build(key, path);
}

Result<Node> SchemaBuilder::build_additional(const json::object& schema,
                                             const std::vector<Property>& properties,
                                             bool unique_keys, const std::string& path) {
  constexpr size_t kMaxOverlapping = 3;
  const std::vector<const json::object*> shapes = shapes_of(schema);
  std::vector<std::string> patterns;
  bool says_more = false;  // whether something is said of others
  for (const json::object* shape : shapes) {
    says_more = says_more || additional_of(*shape) != nullptr;
    for (const auto& field : fields_of(*shape, "patternProperties")) {
      if (std::find(patterns.begin(), patterns.end(), field.key()) == patterns.end()) {
        patterns.emplace_back(field.key());
      }
    }
  }
  const std::string patterns_path = path_to(path, "patternProperties");
  if (patterns.size() > kMaxPatterns) {
    return bad(fmt::format("is not supported with more than {} patterns", kMaxPatterns),
               patterns_path);
  }
  std::vector<Node> ways;
  // Keys that match the expressions of the set alone.
  const auto add = [&](uint32_t set, const std::string& where) -> Result<void> {
    RUDDER_TRY(Node key, build_key(schema, set, patterns, properties, where));
    if (key == rules_.nothing()) return {};
    if (unique_keys) {
      RUDDER_TRY(key, unique_key(key, path_to(path, "minProperties")));
    }
    std::vector<const json::value*> parts;
    for (const json::object* shape : shapes) {
      const size_t before = parts.size();
      const json::object& fields = fields_of(*shape, "patternProperties");
      for (size_t i = 0; i < patterns.size(); ++i) {
        const json::value* value = fields.if_contains(patterns[i]);
        if ((set >> i & 1) != 0 && value != nullptr) parts.push_back(value);
      }
      const json::value* more = additional_of(*shape);
      if (parts.size() == before && more != nullptr) parts.push_back(more);
    }
    RUDDER_TRY(const Node node, build_all_of(parts, where));
    if (node == rules_.nothing()) return {};
    ways.push_back(rules_.share(rules_.sequence({key, text_.colon(), node})));
    return {};
  };
  // Each set of expressions that a key may match. Where there are many, keys that match two of them
  // are left out.
  for (uint32_t set = 1; set < uint32_t{1} << patterns.size(); ++set) {
    if (patterns.size() > kMaxOverlapping && std::popcount(set) > 1) continue;
    const auto first = static_cast<size_t>(std::countr_zero(set));
    RUDDER_TRY_VOID(add(set, path_to(patterns_path, patterns[first])));
  }
  // With properties named and nothing said, there are no others.
  const bool closed = std::any_of(shapes.begin(), shapes.end(), [](const json::object* shape) {
    const json::value* more = additional_of(*shape);
    return more != nullptr && more->is_bool() && !more->get_bool();
  });
  if (says_more ? !closed : properties.empty() && patterns.empty()) {
    RUDDER_TRY_VOID(
        add(0, path_to(path, schema.contains("propertyNames") ? "propertyNames"
                                                              : "additionalProperties")));
  }
  return rules_.choice(ways);
}

// The key as one that an object has once.
Result<Node> SchemaBuilder::unique_key(Node key, const std::string& path) {
  const bool lost_before = std::exchange(has_lost_mark_, false);
  const int32_t texts_before = std::exchange(unique_texts_, kManyTexts);
  RUDDER_TRY(const Node node, unique_string(key, path));
  const bool is_lost = std::exchange(has_lost_mark_, lost_before);
  const int32_t texts = std::exchange(unique_texts_, texts_before);
  if (is_lost || texts < kManyTexts || rules_.data(node).kind != RuleSet::Kind::kTerminal) {
    return bad("is not supported above 1 beside other keys that are few, or several expressions",
               path);
  }
  Terminal one = rules_.terminal_of(rules_.data(node).index);
  one.is_key = true;
  return rules_.terminal(one);
}

Result<Node> SchemaBuilder::build_object(const json::object& schema, const std::string& path) {
  if (schema.contains(kShapes) && schema.contains("unevaluatedProperties")) {
    return bad("is not supported where schemas with other patternProperties are joined",
               path_to(path, "unevaluatedProperties"));
  }
  RUDDER_TRY(const std::vector<Property> properties, build_properties(schema, path));
  // With copies of the names.
  Held held(rules_.fuel());
  for (const Property& one : properties) held.add(2 * (std::ssize(one.name) + sizeof(Property)));
  const int64_t min = count_or(schema, "minProperties", 0);
  const int64_t max = count_or(schema, "maxProperties", RuleSet::kUnbounded);
  const auto num_required = std::count_if(properties.begin(), properties.end(),
                                          [](const Property& one) { return one.required; });
  // Repeated keys would be counted.
  const bool unique_keys = min > std::max<int64_t>(1, num_required);
  RUDDER_TRY(const Node additional, build_additional(schema, properties, unique_keys, path));
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
    const auto least =
        static_cast<int32_t>(std::max<int64_t>(0, min - std::max<int64_t>(count, 1)));
    if (count > 0) return rules_.sequence({rules_.repeat(another, least, room), text_.inside()});
    if (bounded && max == 0) return rules_.empty();
    const Node some =
        rules_.sequence({additional, rules_.repeat(another, least, room), text_.inside()});
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

}  // namespace rudder::constraint
