// What SchemaBuilder makes of lists whose items differ: of strings, and of objects by a string in
// them, the matcher sees to it (unique_strings.h); items of few values are written out.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <boost/json.hpp>
#include <cmath>
#include <optional>
#include <utility>

#include "rudder/constraint/schema_builder.h"
#include "rudder/constraint/schema_keywords.h"
#include "rudder/constraint/schema_merge.h"
#include "rudder/constraint/schema_parts.h"
#include "rudder/constraint/string_form.h"

namespace rudder::constraint {

namespace json = boost::json;

namespace {

using Node = RuleSet::Node;

// The values that a schema can have, where they are few by its types and bounds alone; each is held
// to its other keywords later.
std::optional<json::array> few_values(const json::object& schema) {
  constexpr double kMaxRange = 256;
  if (const json::value* list = schema.if_contains("enum")) return list->get_array();
  if (const json::value* one = schema.if_contains("const")) return json::array({*one});
  const std::vector<std::string> types = types_of(schema);
  json::array values;
  for (const std::string& type : types) {
    const json::value* min = schema.if_contains("minimum");
    const json::value* max = schema.if_contains("maximum");
    if (type == "boolean") {
      values.insert(values.end(), {false, true});
    } else if (type == "null") {
      values.emplace_back(nullptr);
    } else if (type == "integer" && min != nullptr && max != nullptr) {
      const double first = std::ceil(min->to_number<double>());
      const double last = std::floor(max->to_number<double>());
      if (std::abs(first) > kMaxRange * kMaxRange || last - first >= kMaxRange) return std::nullopt;
      for (double value = first; value <= last; ++value) {
        values.emplace_back(static_cast<int64_t>(value));
      }
    } else {
      return std::nullopt;
    }
  }
  return types.empty() ? std::nullopt : std::optional(std::move(values));
}

// Whether each text that the automaton has begun can go on, and so for ever: no end is the only
// way.
bool always_goes_on(const ByteAutomaton& automaton) {
  const auto width = static_cast<size_t>(automaton.num_classes);
  for (size_t state = 0; state < automaton.boundary.size(); ++state) {
    const bool is_live = automaton.missing[state] != ByteAutomaton::kNever;
    if (!is_live || state == ByteAutomaton::kClosed) continue;
    const auto* const row = automaton.next.data() + state * width;
    if (std::none_of(row, row + width, [](int32_t to) {
          return to != ByteAutomaton::kDead && to != ByteAutomaton::kClosed;
        })) {
      return false;
    }
  }
  return true;
}

// A schema of the document, and the target of the last reference that led to it.
struct Referred {
  const json::object* schema = nullptr;  // null: not a schema of its own
  const json::value* target = nullptr;
};

Referred referred(const SchemaDocument& document, const json::value& schema) {
  constexpr int kMaxChain = 8;
  const json::value* target = nullptr;
  const json::value* at = &schema;
  for (int i = 0; i < kMaxChain && at->is_object(); ++i) {
    const json::object& object = at->get_object();
    const json::value* reference = object.if_contains("$ref");
    if (reference == nullptr) return {&object, target};
    if (!std::all_of(object.begin(), object.end(), [](const auto& field) {
          return field.key() == "$ref" || keyword_info(field.key()).annotation;
        })) {
      break;
    }
    const auto found = document.resolve(reference->get_string(), "");
    if (!found) break;
    at = target = *found;
  }
  return {};
}

Referred unique_items(const SchemaDocument& document, const json::object& schema) {
  const json::value* items = schema.if_contains("items");
  if (items == nullptr || schema.contains("prefixItems")) return {};
  return referred(document, *items);
}

bool has_type(const json::object& schema, std::string_view type) {
  const std::vector<std::string> types = types_of(schema);
  return types.size() == 1 && types[0] == type && !schema.contains("enum") &&
         !schema.contains("const");
}

json::object with_mark(const json::object& text) {
  json::object marked = text;
  marked[kUnique] = true;
  return marked;
}

// The schema with the mark at a string that its values then differ by: itself, or a required field.
std::optional<json::object> marked(const SchemaDocument& document, const json::object& schema) {
  if (has_type(schema, "string")) return with_mark(schema);
  const json::value* fields = schema.if_contains("properties");
  const json::value* required = schema.if_contains("required");
  if (!has_type(schema, "object") || fields == nullptr || required == nullptr) return std::nullopt;
  // One without an expression, if there is one: it can always go on.
  for (const bool plain : {true, false}) {
    for (const json::value& name : required->get_array()) {
      const json::value* field = fields->get_object().if_contains(name.get_string());
      const json::object* text = field == nullptr ? nullptr : referred(document, *field).schema;
      if (text == nullptr || !has_type(*text, "string") || text->contains("maxLength")) continue;
      if (plain && (text->contains(kPatterns) || text->contains("format"))) continue;
      json::object item = schema;
      item.at("properties").get_object()[name.get_string()] = with_mark(*text);
      return item;
    }
  }
  return std::nullopt;
}

}  // namespace

// The node as a terminal that differs within its list. What could only end as another one is not
// one.
Node SchemaBuilder::unique_string(Node node) {
  const RuleSet::Data& data = rules_.data(node);
  if (data.kind == RuleSet::Kind::kTerminal) {
    Terminal one = rules_.terminal_of(data.index);
    const bool goes_on = one.pattern.empty() || (one.automaton && always_goes_on(*one.automaton));
    if (one.quoted && one.max == Terminal::kUnbounded && goes_on) {
      one.any_spelling = false;
      one.unique = true;
      return rules_.terminal(one);
    }
  }
  has_lost_mark_ = true;
  return rules_.nothing();
}

Result<Node> SchemaBuilder::build_unique_item(const json::object& schema, const std::string& path) {
  const Referred items = unique_items(document_, schema);
  if (items.schema == nullptr || few_values(*items.schema)) return rules_.nothing();
  if (items.target != nullptr) {
    const auto known = unique_references_.find(items.target);
    if (known != unique_references_.end()) return rules_.rule(known->second);
  }
  const std::optional<json::object> item = marked(document_, *items.schema);
  if (!item) return rules_.nothing();
  const Held held(rules_.fuel(), json_bytes(*item));
  if (!rules_.fuel().burn(json_bytes(*item) / 8)) return tl::unexpected(rules_.fuel().error());
  int32_t rule = 0;
  if (items.target != nullptr) {  // it may refer to itself
    rule = rules_.add_rule();
    unique_references_.emplace(items.target, rule);
  }
  const bool before = std::exchange(has_lost_mark_, false);
  RUDDER_TRY(const Node node, build(*item, path_to(path, "items")));
  const bool is_lost = std::exchange(has_lost_mark_, before);
  if (is_lost) {
    return bad("could only end as another item: it has a greatest length",
               path_to(path, "uniqueItems"));
  }
  if (items.target == nullptr) return node;
  rules_.define(rule, node);
  return rules_.rule(rule);
}

// Items of a list of values, each at most once: of a short list a rule for each set of those that
// were there, of a longer one in the order of the list.
Result<Node> SchemaBuilder::build_unique_values(const json::object& schema,
                                                const std::string& path) {
  constexpr size_t kMaxSets = 8;
  const json::object* items = unique_items(document_, schema).schema;
  const auto list = items == nullptr ? std::nullopt : few_values(*items);
  if (!list) {
    return bad(
        "is supported for strings without a greatest length, for objects with such a required "
        "field, and for items of few values (an enum, booleans, integers of a small range): "
        "others may end as equal ones",
        path_to(path, "uniqueItems"));
  }
  std::vector<Property> values;  // one for each value that the items may be
  json::array distinct;
  json::object one = without(without(*items, "enum"), "const");
  for (const json::value& value : *list) {
    if (!rules_.fuel().burn(std::ssize(distinct))) return tl::unexpected(rules_.fuel().error());
    if (lists_value(distinct, value)) continue;
    distinct.push_back(value);
    one["enum"] = json::array({value});
    RUDDER_TRY(const Node node, build(one, path_to(path, "items")));
    if (node != rules_.nothing()) values.push_back({.name = "", .node = node});
  }
  const int64_t min = count_or(schema, "minItems", 0);
  const int64_t max = count_or(schema, "maxItems", std::ssize(values));
  if (max < min) return rules_.nothing();
  if (values.size() > kMaxSets) {
    const int64_t most = max < std::ssize(values) ? max : RuleSet::kUnbounded;
    RUDDER_TRY(const Node in_order, chain(values, rules_.nothing(), min, most, path));
    return rules_.sequence({rules_.literal("["), text_.inside(), in_order, rules_.literal("]")});
  }
  // From the full set to the empty one: what may follow when these values were there.
  std::vector<Node> after(size_t{1} << values.size());
  for (size_t set = after.size(); set-- > 0;) {
    const auto count = static_cast<int64_t>(std::popcount(set));
    std::vector<Node> ways;
    if (count >= min) ways.push_back(count > 0 ? text_.inside() : rules_.empty());
    for (size_t i = 0; count < max && i < values.size(); ++i) {
      if ((set >> i & 1) != 0) continue;
      const Node item =
          count > 0 ? rules_.sequence({text_.comma(), values[i].node}) : values[i].node;
      ways.push_back(rules_.sequence({item, after[set | size_t{1} << i]}));
    }
    after[set] = rules_.share(rules_.choice(ways));
  }
  return rules_.sequence({rules_.literal("["), text_.inside(), after[0], rules_.literal("]")});
}

}  // namespace rudder::constraint
