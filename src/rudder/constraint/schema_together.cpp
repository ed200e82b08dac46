// What SchemaBuilder makes of schemas that bind together: one schema of all parts, and where
// several of them have alternatives, one for each choice of them that is not a contradiction.
#include <algorithm>
#include <boost/json.hpp>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "rudder/constraint/schema_builder.h"
#include "rudder/constraint/schema_complement.h"
#include "rudder/constraint/schema_exclusion.h"
#include "rudder/constraint/schema_keywords.h"
#include "rudder/constraint/schema_merge.h"
#include "rudder/constraint/schema_parts.h"

namespace rudder::constraint {

namespace json = boost::json;

namespace {

using Node = RuleSet::Node;

constexpr int kMaxReferences = 200;    // from one to the next
constexpr size_t kMaxNarrowed = 2048;  // of alternatives
constexpr int64_t kMaxWay = 2000;      // in memory, of one whose complement is looked at

// The one field of which the way says something; nothing where it says something else.
std::optional<std::string_view> field_of_way(const json::value& way) {
  const json::value* fields =
      way.is_object() ? way.get_object().if_contains("properties") : nullptr;
  if (fields == nullptr || fields->get_object().size() != 1) return std::nullopt;
  return std::string_view(fields->get_object().begin()->key());
}

// Ways about the field first of which most lists say something, and of those what says little: that
// it is missing, or is not some value.
void sort_ways(json::array& ways, const std::vector<json::array>& lists) {
  std::map<std::optional<std::string_view>, int> lists_of;
  for (const json::array& list : lists) {
    std::set<std::optional<std::string_view>> fields;
    for (const json::value& way : list) fields.insert(field_of_way(way));
    for (const std::optional<std::string_view>& field : fields) ++lists_of[field];
  }
  lists_of.erase(std::nullopt);
  struct Rank {
    int lists = 0;  // below zero
    int64_t bytes = 0;
    size_t index = 0;
    bool operator==(const Rank&) const = default;
    auto operator<=>(const Rank& other) const {
      return std::tie(lists, bytes, index) <=> std::tie(other.lists, other.bytes, other.index);
    }
  };
  std::vector<Rank> ranks;
  for (size_t i = 0; i < ways.size(); ++i) {
    const auto known = lists_of.find(field_of_way(ways[i]));
    ranks.push_back({known == lists_of.end() ? 0 : -known->second, json_bytes(ways[i]), i});
  }
  std::ranges::sort(ranks);
  json::array sorted;
  sorted.reserve(ways.size());
  for (const Rank& rank : ranks) sorted.push_back(std::move(ways[rank.index]));
  ways = std::move(sorted);
}

}  // namespace

// The part becomes one with the whole; its alternatives are a list of their own.
Result<void> SchemaBuilder::add_part(Together& together, json::value part,
                                     const std::string& path) {
  Fuel& fuel = rules_.fuel();
  if (part.is_object() && part.get_object().size() == 1 && part.get_object().contains("allOf")) {
    for (json::value& one : part.get_object().at("allOf").get_array()) {
      RUDDER_TRY_VOID(add_part(together, std::move(one), path));
    }
    return {};
  }
  // What a part refers to is looked up before it is joined; a chain of references ends by depth.
  for (int i = 0; part.is_object() && part.get_object().contains("$ref"); ++i) {
    if (i == kMaxReferences) return bad("goes round without an end", path);
    RUDDER_TRY_VOID(close_part(part, path));
    const json::value reference = part.get_object().at("$ref");
    RUDDER_TRY(const json::value* target, document_.resolve(reference.get_string(), path));
    const json::object rest = without(part.get_object(), "$ref");
    RUDDER_TRY(part, merge_schemas(fuel, *target, rest, path));
  }
  RUDDER_TRY_VOID(close_part(part, path));
  take_alternatives(together, part);
  RUDDER_TRY(together.whole, merge_schemas(fuel, together.whole, part, path));
  return {};
}

void SchemaBuilder::take_alternatives(Together& together, json::value& part) {
  json::object* schema = part.if_object();
  if (schema == nullptr || !schema->contains("anyOf")) return;
  if (schema->contains("unevaluatedProperties")) return;  // which sees them
  together.lists.push_back(schema->at("anyOf").get_array());
  schema->erase("anyOf");
}

// Whether the way says nothing that does not hold already.
bool SchemaBuilder::holds(const json::value& whole, const json::value& way) {
  if (way.is_bool()) return way.get_bool();
  const json::object& asked = way.get_object();
  if (asked.size() == 1 && asked.contains("type")) {
    const json::value others = json::object({{"type", other_types(asked.at("type"))}});
    return exclude_each_other(rules_.fuel(), document_, whole, others);
  }
  const std::vector<std::string> types = types_of(whole.get_object());
  return types.size() == 1 && types[0] == "object" &&
         objects_take(rules_.fuel(), document_, whole, way);
}

// Takes out what contradicts the whole, or holds anyway, until nothing changes. False where no
// alternative of a list is left.
Result<bool> SchemaBuilder::narrow(Together& together, const std::string& path) {
  Fuel& fuel = rules_.fuel();
  for (size_t i = 0; i < together.lists.size();) {
    if (!together.whole.is_object()) return together.whole.get_bool();
    json::array& list = together.lists[i];
    json::array left;
    for (json::value& way : list) {
      if (!exclude_each_other(fuel, document_, together.whole, way)) left.push_back(std::move(way));
    }
    if (fuel.out()) return tl::unexpected(fuel.error());
    if (left.empty()) return false;
    const bool is_held = std::ranges::any_of(
        left, [&](const json::value& way) { return holds(together.whole, way); });
    list = std::move(left);
    if (!is_held && list.size() > 1) {
      ++i;
      continue;
    }
    const json::value only = std::move(list[0]);
    together.lists.erase(together.lists.begin() + static_cast<std::ptrdiff_t>(i));
    if (is_held) continue;
    RUDDER_TRY_VOID(add_part(together, only, path));
    i = 0;
  }
  return true;
}

// Adds a node for each choice of alternatives. Those that come later in a list are without those
// before them where that is one schema, so that few choices are left for other lists.
Result<void> SchemaBuilder::choose(Together together, const std::string& path,
                                   std::vector<Node>& nodes) {
  Fuel& fuel = rules_.fuel();
  RUDDER_TRY(const bool is_possible, narrow(together, path));
  if (!is_possible) return {};
  if (nodes.size() == kMaxNarrowed) {
    return bad("makes too many alternatives together with other lists", path_to(path, "anyOf"));
  }
  if (together.lists.size() <= 1) {
    json::value& whole = together.whole;
    for (json::array& list : together.lists) {
      const json::value ways = json::object({{"anyOf", std::move(list)}});
      RUDDER_TRY(whole, merge_schemas(fuel, whole, ways, path));
    }
    const Held held(fuel, json_bytes(whole));
    RUDDER_TRY(const Node node, build(whole, path));
    nodes.push_back(node);
    return {};
  }
  const auto shortest = std::ranges::min_element(
      together.lists, {}, [](const json::array& list) { return list.size(); });
  json::array list = std::move(*shortest);
  together.lists.erase(shortest);
  sort_ways(list, together.lists);
  int64_t bytes = json_bytes(together.whole) + json_bytes(list);
  for (const json::array& other : together.lists) bytes += json_bytes(other);
  const Held held(fuel, bytes);
  if (!fuel.burn(bytes / 8)) return tl::unexpected(fuel.error());
  for (const json::value& way : list) {
    Together chosen = together;
    RUDDER_TRY_VOID(add_part(chosen, way, path));
    RUDDER_TRY_VOID(choose(std::move(chosen), path, nodes));
    // Fields of a complement are not evaluated by it.
    if (together.whole.get_object().contains("unevaluatedProperties")) continue;
    const bool is_type =
        way.is_object() && way.get_object().size() == 1 && way.get_object().contains("type");
    const bool is_plain = is_type || field_of_way(way).has_value();
    if (!is_plain || json_bytes(way) > kMaxWay) continue;
    Result<Complement> other = complement(fuel, document_, way, path);
    if (fuel.out()) return tl::unexpected(fuel.error());
    if (!other || !other->exact) continue;
    json::array left;
    for (json::value& one : other->ways) {
      if (!exclude_each_other(fuel, document_, together.whole, one)) left.push_back(std::move(one));
    }
    if (left.empty()) return {};
    if (left.size() > 1) continue;
    RUDDER_TRY_VOID(add_part(together, std::move(left[0]), path));
    if (!together.whole.is_object()) return {};
  }
  return {};
}

// One schema of all parts.
Result<Node> SchemaBuilder::join(const json::object& schema, const std::string& path) {
  Fuel& fuel = rules_.fuel();
  Together together;
  Held held(fuel, json_bytes(schema));  // the parts
  std::vector<std::pair<json::value, std::string>> parts;
  if (const json::value* reference = schema.if_contains("$ref")) {
    RUDDER_TRY(const json::value* target, document_.resolve(reference->get_string(), path));
    if (!held.add(json_bytes(*target))) return tl::unexpected(fuel.error());
    parts.emplace_back(*target, path_to(path, "$ref"));
    together.whole = without(schema, "$ref");
  } else {
    const json::array& list = schema.at("allOf").get_array();
    if (num_binding(schema, "allOf") == 0 && std::ranges::count_if(list, binds) == 1) {
      // It stays a reference where it is one: its target is built once.
      const auto one = std::ranges::find_if(list, binds) - list.begin();
      return build(*(list.begin() + one),
                   path_to(path_to(path, "allOf"), static_cast<size_t>(one)));
    }
    for (size_t i = 0; i < list.size(); ++i) {
      parts.emplace_back(list[i], path_to(path_to(path, "allOf"), i));
    }
    together.whole = without(schema, "allOf");
  }
  take_alternatives(together, together.whole);
  for (auto& [part, where] : parts) {
    RUDDER_TRY_VOID(add_part(together, std::move(part), where));
  }
  parts.clear();
  if (!held.add(json_bytes(together.whole))) return tl::unexpected(fuel.error());
  std::vector<Node> nodes;
  RUDDER_TRY_VOID(choose(std::move(together), path, nodes));
  return rules_.choice(nodes);
}

}  // namespace rudder::constraint
