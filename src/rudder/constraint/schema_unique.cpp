// What SchemaBuilder makes of lists whose items differ: of strings, numbers, and objects by one of
// those in them, the matcher sees to it (unique_texts.h); items of few values are written out.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <boost/json.hpp>
#include <cmath>
#include <optional>
#include <utility>

#include "rudder/constraint/pattern_dfa.h"
#include "rudder/constraint/schema_builder.h"
#include "rudder/constraint/schema_keywords.h"
#include "rudder/constraint/schema_merge.h"
#include "rudder/constraint/schema_parts.h"
#include "rudder/constraint/schema_unique_kinds.h"
#include "rudder/constraint/string_form.h"
#include "rudder/constraint/text_counts.h"

namespace rudder::constraint {

namespace json = boost::json;

namespace {

using Node = RuleSet::Node;

// The items' schema, where there are no others.
Referred unique_items(const SchemaDocument& document, const json::object& schema) {
  static const json::value any = json::object();
  const json::value* items = schema.if_contains("items");
  if (schema.contains("prefixItems") || (items != nullptr && items->is_bool())) return {};
  return referred(document, items == nullptr ? any : *items);
}

// Characters that are one byte in a JSON string.
bool is_plain(const CharSet& set) {
  const auto& ranges = set.ranges();
  return !set.contains('"') && !set.contains('\\') &&
         std::ranges::all_of(ranges, [](const CharRange& range) {
           return range.first >= 0x20 && range.last < 0x7F;
         });
}

int64_t num_chars(const CharSet& set) {
  int64_t count = 0;
  for (const CharRange& range : set.ranges()) count += int64_t{range.last} - range.first + 1;
  return count;
}

}  // namespace

// The strings that the node stands for as one terminal, or the node; nothing where it is not clear
// which they are.
Result<Node> SchemaBuilder::one_terminal(Node node, const std::string& path) {
  std::vector<Node> open = {node};
  std::vector<int32_t> seen;  // rules
  std::vector<std::string> values;
  std::vector<std::string> patterns;
  size_t num_terminals = 0;
  Node terminal = rules_.nothing();
  while (!open.empty()) {
    const Node at = open.back();
    open.pop_back();
    const RuleSet::Data& data = rules_.data(at);
    if (!rules_.fuel().burn(20)) return tl::unexpected(rules_.fuel().error());
    if (data.kind == RuleSet::Kind::kChoice) {
      open.insert(open.end(), data.parts.begin(), data.parts.end());
    } else if (data.kind == RuleSet::Kind::kRule) {
      if (std::ranges::find(seen, data.index) != seen.end()) continue;
      seen.push_back(data.index);
      const Node body = rules_.body(data.index);
      if (body == rules_.nothing()) return rules_.nothing();  // it is being built
      open.push_back(body);
    } else if (data.kind == RuleSet::Kind::kLiteral && data.text.starts_with('"')) {
      values.emplace_back(json::parse(data.text).get_string());
    } else if (data.kind == RuleSet::Kind::kTerminal) {
      const Terminal& one = rules_.terminal_of(data.index);
      const PatternBounds bounds = {.min_length = one.min, .max_length = one.max};
      const bool is_plain = one.quoted && one.excluded.empty() && one.also.empty() &&
                            one.never.empty() &&
                            (one.pattern.empty() ||
                             (bounds.min_length == 0 && bounds.max_length == RuleSet::kUnbounded));
      if (++num_terminals == 1) terminal = at;
      patterns.push_back(!is_plain             ? ""
                         : one.pattern.empty() ? pattern_of_chars(one.set, bounds)
                                               : one.pattern);
    } else if (data.kind != RuleSet::Kind::kNothing) {
      return rules_.nothing();
    }
  }
  if (values.empty() && num_terminals <= 1) return terminal;
  StringForm form;
  if (!values.empty()) patterns.push_back(pattern_of_values(values));
  form.all.emplace_back();
  for (const std::string& pattern : patterns) {
    if (pattern.empty()) return rules_.nothing();
    form.all[0] += (form.all[0].empty() ? "" : "|") + pattern;
  }
  return strings(form, path);
}

// The node as a terminal that differs within its list.
Result<Node> SchemaBuilder::unique_string(Node node, const std::string& path) {
  RUDDER_TRY(const Node terminal, one_terminal(node, path));
  const RuleSet::Data& data = rules_.data(terminal);
  if (data.kind == RuleSet::Kind::kTerminal) {
    Terminal one = rules_.terminal_of(data.index);
    bool is_known = one.quoted;
    bool may_end = one.max != Terminal::kUnbounded;
    if (one.pattern.empty() && may_end && one.set != CharSet::all() && !is_plain(one.set)) {
      StringForm form;
      form.all = {pattern_of_chars(one.set, {.min_length = one.min, .max_length = one.max})};
      RUDDER_TRY(std::optional<ByteAutomaton> automaton, string_automaton(rules_.fuel(), form));
      if (rules_.fuel().out()) return tl::unexpected(rules_.fuel().error());
      if (automaton) {
        one.set = {};
        one.min = 0;
        one.max = Terminal::kUnbounded;
        one.pattern = form.all[0];
        one.automaton = std::make_shared<ByteAutomaton>(std::move(*automaton));
      }
    }
    int32_t num_texts = kManyTexts;
    if (one.pattern.empty()) {
      is_known = is_known && (!may_end || one.set == CharSet::all() || is_plain(one.set));
      if (is_known && may_end) num_texts = text_count(num_chars(one.set), one.min, one.max, 0);
    } else {
      is_known = is_known && one.automaton != nullptr &&
                 rules_.fuel().burn(std::ssize(one.automaton->next));
      if (is_known) {
        const std::vector<int32_t> counts = text_counts(*one.automaton, true);
        may_end = !always_goes_on(*one.automaton, counts);
        num_texts = counts[ByteAutomaton::kOpening];
      }
    }
    if (is_known && (!may_end || one.excluded.empty())) {
      unique_texts_ = std::min(unique_texts_, num_texts);
      one.any_spelling = false;
      one.unique = true;
      return rules_.terminal(one);
    }
  }
  has_lost_mark_ = has_lost_mark_ || node != rules_.nothing();
  return rules_.nothing();
}

Result<SchemaBuilder::UniqueItems> SchemaBuilder::build_unique_items(const json::object& schema,
                                                                     const std::string& path) {
  UniqueItems unique = {.apart = rules_.nothing(), .others = rules_.nothing()};
  const Referred items = unique_items(document_, schema);
  if (items.schema == nullptr || few_values(*items.schema)) return unique;
  if (items.target != nullptr) {
    const auto known = unique_references_.find(items.target);
    if (known != unique_references_.end()) {
      known->second.is_open = true;
      return known->second;
    }
  }
  ItemKinds kinds(rules_.fuel(), document_);
  const bool is_sorted = kinds.sort(*items.schema);
  if (rules_.fuel().out()) return tl::unexpected(rules_.fuel().error());
  if (!is_sorted || kinds.apart().empty()) return unique;
  const Held held(rules_.fuel(), json_bytes(kinds.apart()) + json_bytes(kinds.others()));
  // It may refer to itself.
  const std::array rules = {rules_.add_rule(), rules_.add_rule()};
  unique.apart = rules_.rule(rules[0]);
  if (!kinds.others().empty()) unique.others = rules_.rule(rules[1]);
  if (items.target != nullptr) unique_references_.emplace(items.target, unique);
  const bool before = std::exchange(has_lost_mark_, false);
  const int32_t texts_before = std::exchange(unique_texts_, kManyTexts);
  std::vector<Node> apart;
  int32_t most_scalars = 0;
  bool has_scalars = false;
  bool has_objects = false;
  for (const json::value& one : kinds.apart()) {
    RUDDER_TRY(const Node node, build(one, path_to(path, "items")));
    apart.push_back(node);
    if (one.at("type") == "object") {
      has_objects = true;
    } else {
      has_scalars = true;
      most_scalars = std::max(most_scalars, std::exchange(unique_texts_, kManyTexts));
    }
  }
  const bool is_lost = std::exchange(has_lost_mark_, before);
  // Where strings are used up numbers go on, and objects as long as each of them has one left.
  unique.most = std::exchange(unique_texts_, texts_before);
  if (has_scalars && (!has_objects || unique.most < kManyTexts)) {
    unique.most = std::min(unique.most, most_scalars);
  }
  if (is_lost) {
    return bad("has strings or numbers whose texts are not those of one expression",
               path_to(path, "uniqueItems"));
  }
  std::vector<Node> others;
  for (const json::value& one : kinds.others()) {
    RUDDER_TRY(const Node node, build(one, path_to(path, "items")));
    others.push_back(node);
  }
  rules_.define(rules[0], rules_.choice(apart));
  rules_.define(rules[1], rules_.choice(others));
  if (items.target == nullptr) return unique;
  UniqueItems& known = unique_references_[items.target];
  if (known.is_open && unique.most < kManyTexts) {
    return bad("is not supported for items in themselves by a string of which there are few",
               path_to(path, "uniqueItems"));
  }
  known = unique;
  return unique;
}

// Items that a string or number tells apart, and one of the others at most: anywhere among them, or
// before them where items are counted.
Node SchemaBuilder::build_unique_list(const UniqueItems& unique, const json::object& schema) {
  const auto min = static_cast<int32_t>(count_or(schema, "minItems", 0));
  const auto max = static_cast<int32_t>(count_or(schema, "maxItems", RuleSet::kUnbounded));
  const bool is_open = max == RuleSet::kUnbounded && unique.most == kManyTexts;
  const auto more = [&](Node item, int32_t least, int32_t most) {
    const Node another = rules_.sequence({text_.comma(), item});
    return most >= 0 && most < least ? rules_.nothing() : rules_.repeat(another, least, most);
  };
  Node items = rules_.nothing();
  if (min <= 1 && is_open) {
    const Node rest = rules_.share(more(unique.apart, 0, RuleSet::kUnbounded));
    const Node other = rules_.optional(rules_.sequence({more(unique.others, 1, 1), rest}));
    items = rules_.choice(
        {rules_.sequence({unique.apart, rest, other}), rules_.sequence({unique.others, rest})});
  } else {
    const int32_t most = max < 0 ? unique.most : std::min(max, unique.most);
    const int32_t behind_other = max < 0 ? unique.most : std::min(max - 1, unique.most);
    items = rules_.choice(
        {rules_.sequence({unique.apart, more(unique.apart, std::max(min - 1, 0), most - 1)}),
         rules_.sequence({unique.others, more(unique.apart, std::max(min - 1, 0), behind_other)})});
  }
  items = rules_.sequence({items, text_.inside()});
  return rules_.share(
      rules_.sequence({rules_.literal("["), text_.inside(),
                       min > 0 ? items : rules_.optional(items), rules_.literal("]")}));
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
        "is supported for strings and numbers, for objects with a field that is one, for lists "
        "that have one other item besides, and for items of few values (an enum, booleans): "
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
