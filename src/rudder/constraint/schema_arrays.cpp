// Arrays of SchemaBuilder.
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
#include "rudder/constraint/text_counts.h"

namespace rudder::constraint {

namespace json = boost::json;

namespace {

using Node = RuleSet::Node;

// Arrays' limits above it are beyond what a context holds.
constexpr int64_t kMaxItems = 100'000;

}  // namespace

// Items of which at least one is accepted by each schema that `contains` has, with any others
// around them.
Result<Node> SchemaBuilder::build_containing(const json::object& schema, const std::string& path) {
  constexpr size_t kMaxContained = 3;
  const std::string where = path_to(path, "contains");
  if (schema.contains("prefixItems") || schema.contains("uniqueItems") ||
      schema.contains("maxItems") || count_or(schema, "minItems", 0) > 1) {
    return bad("is not supported beside prefixItems, uniqueItems, maxItems and minItems", where);
  }
  const Held held(rules_.fuel(), json_bytes(schema));
  if (rules_.fuel().out()) return tl::unexpected(rules_.fuel().error());
  const json::array contained = contained_in(schema);
  if (contained.size() > kMaxContained) {
    return bad(fmt::format("is not supported {} times together", contained.size()), where);
  }
  const json::value* items = schema.if_contains("items");
  const json::value any = true;
  const json::value& item = items == nullptr ? any : *items;
  RUDDER_TRY(const Node other, build(item, path_to(path, "items")));
  // By the set of the schemas: an item that all of them accept.
  const size_t all = (size_t{1} << contained.size()) - 1;
  std::vector<Node> accepted(all + 1, rules_.nothing());
  for (size_t set = 1; set <= all; ++set) {
    std::vector<const json::value*> parts = {&item};
    for (size_t i = 0; i < contained.size(); ++i) {
      if ((set >> i & 1) != 0) parts.push_back(&contained[i]);
    }
    RUDDER_TRY(accepted[set], build_all_of(parts, where));
  }
  const Node before =
      rules_.repeat(rules_.sequence({other, text_.comma()}), 0, RuleSet::kUnbounded);
  const Node behind =
      rules_.repeat(rules_.sequence({text_.comma(), other}), 0, RuleSet::kUnbounded);
  // By the set of those that an item was there for: what may follow it.
  std::vector<Node> after(all + 1);
  std::vector<Node> lists;
  for (size_t set = all; set > 0; --set) {
    std::vector<Node> ways;
    if (set == all) ways.push_back(rules_.sequence({behind, text_.inside(), rules_.literal("]")}));
    for (size_t more = 1; more <= all; ++more) {
      if ((set & more) != 0) continue;
      ways.push_back(rules_.sequence({behind, text_.comma(), accepted[more], after[set | more]}));
    }
    after[set] = rules_.share(rules_.choice(ways));
    lists.push_back(rules_.sequence({before, accepted[set], after[set]}));
  }
  return rules_.share(rules_.sequence({rules_.literal("["), text_.inside(), rules_.choice(lists)}));
}

// Items that have an index each, and exclude each other.
bool SchemaBuilder::are_apart_by_index(const json::object& schema) {
  const json::value* first = schema.if_contains("prefixItems");
  const json::value* others = schema.if_contains("items");
  const bool has_others = others != nullptr && *others != json::value(false);
  return first != nullptr && !has_others && exclude_all(first->get_array());
}

Result<Node> SchemaBuilder::build_array(const json::object& schema, const std::string& path) {
  if (schema.contains("contains") || schema.contains(kContained))
    return build_containing(schema, path);
  Node unique = rules_.nothing();
  int64_t most_unique = RuleSet::kUnbounded;
  const int64_t min = count_or(schema, "minItems", 0);
  if (min > kMaxItems)
    return bad(fmt::format("must be at most {}", kMaxItems), path_to(path, "minItems"));
  if (schema.contains("uniqueItems") && count_or(schema, "maxItems", 2) > 1 &&
      !are_apart_by_index(schema)) {
    RUDDER_TRY(const UniqueItems items, build_unique_items(schema, path));
    if (items.apart == rules_.nothing()) return build_unique_values(schema, path);
    if (items.others != rules_.nothing()) return build_unique_list(items, schema);
    unique = items.apart;
    if (items.most < kManyTexts) most_unique = items.most;
  }
  const json::array none;
  const json::value* items = schema.if_contains("items");
  const json::value* prefix = schema.if_contains("prefixItems");
  const std::string prefix_path = path_to(path, "prefixItems");
  const std::string items_path = path_to(path, "items");
  const json::array& first = prefix == nullptr ? none : prefix->get_array();
  int64_t max = count_or(schema, "maxItems", most_unique);
  if (most_unique >= 0) max = std::min(max, most_unique);
  // With the first items named and nothing said, there are no others.
  Node rest = rules_.nothing();
  if (unique != rules_.nothing()) {
    rest = unique;
  } else if (items != nullptr) {
    RUDDER_TRY(rest, build(*items, items_path));
  } else if (first.empty()) {
    rest = text_.value();
  }
  const auto num_first = static_cast<int64_t>(first.size());
  if (rest == rules_.nothing()) max = max < 0 ? num_first : std::min(max, num_first);
  if (max >= 0 && max < min) return rules_.nothing();
  // From the last of them to the first: what may come when `i` items are there.
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
  const int64_t num_named = max < 0 ? num_first : std::min(num_first, max);
  for (int64_t i = num_named - 1; i >= 0; --i) {
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
