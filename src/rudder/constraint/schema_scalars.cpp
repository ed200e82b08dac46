// Strings and numbers of SchemaBuilder.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <string_view>
#include <utility>

#include "rudder/base/exact_json.h"
#include "rudder/constraint/number_range.h"
#include "rudder/constraint/schema_builder.h"
#include "rudder/constraint/schema_keywords.h"
#include "rudder/constraint/schema_parts.h"
#include "rudder/constraint/string_form.h"
#include "rudder/constraint/string_formats.h"

namespace rudder::constraint {

namespace json = boost::json;

namespace {

using Node = RuleSet::Node;

int32_t length_or(const json::object& schema, std::string_view key, int32_t otherwise) {
  return static_cast<int32_t>(count_or(schema, key, otherwise));
}

struct NamedBound : NumberBound {
  const char* keyword = "";
};

// Of two bounds on the same side, the one that leaves less.
std::optional<NamedBound> tightest(const json::object& schema, const char* inclusive,
                                   const char* exclusive) {
  const bool is_lower = std::string_view(inclusive) == "minimum";
  std::optional<NamedBound> tight;
  for (const bool is_exclusive : {false, true}) {
    const char* keyword = is_exclusive ? exclusive : inclusive;
    const json::value* operand = schema.if_contains(keyword);
    if (operand == nullptr) continue;
    const Decimal number = *decimal_of(*operand);
    const bool is_tighter = !tight || number == tight->value || (number > tight->value) == is_lower;
    if (is_tighter) tight = NamedBound{{number, is_exclusive}, keyword};
  }
  return tight;
}

// Digits that multiples of 0.1, 0.01 and so on have behind the point; 0 for other steps.
int32_t fraction_of(const Decimal& step) {
  constexpr int32_t kMaxFraction = 9;
  for (int32_t digits = 1; digits <= kMaxFraction; ++digits) {
    if (step == *Decimal::read(fmt::format("1e-{}", digits))) return digits;
  }
  return 0;
}

void add_patterns(const json::object& schema, std::string_view key,
                  std::vector<std::string>& patterns) {
  const json::value* list = schema.if_contains(key);
  if (list == nullptr) return;
  for (const json::value& one : list->get_array()) patterns.emplace_back(one.get_string());
}

// The ranges between the values.
Node integers_other_than(RuleSet& rules, std::optional<Decimal> low,
                         const std::optional<Decimal>& high, const json::array& refused) {
  std::vector<Decimal> values;
  for (const json::value& value : refused) {
    if (value_has_type(value, "integer")) values.push_back(*decimal_of(value));
  }
  std::sort(values.begin(), values.end());
  std::vector<Node> ways;
  for (const Decimal& value : values) {
    if (rules.fuel().out()) break;
    if ((low && value < *low) || (high && value > *high)) continue;
    const Decimal before = value.minus_one();
    if (!low || before >= *low) ways.push_back(integer_range(rules, low, before));
    low = value.plus_one();
  }
  if (!low || !high || *low <= *high) ways.push_back(integer_range(rules, low, high));
  return rules.choice(ways);
}

// Likewise, of numbers that need not be whole.
Node numbers_other_than(RuleSet& rules, std::optional<NumberBound> min,
                        const std::optional<NumberBound>& max, const NumberForm& form,
                        const json::array& refused, const std::string& path) {
  std::vector<Decimal> values;
  for (const json::value& value : refused) {
    if (is_number(value)) values.push_back(*decimal_of(value));
  }
  std::sort(values.begin(), values.end());
  std::vector<Node> ways;
  const auto add = [&](const std::optional<NumberBound>& from,
                       const std::optional<NumberBound>& to) {
    const bool is_empty = from && to &&
                          (from->value > to->value ||
                           (from->value == to->value && (from->exclusive || to->exclusive)));
    if (is_empty) return;
    ways.push_back(number_range(rules, from, to, form));
    // What is between has more digits than are written.
    if (ways.back() == rules.nothing()) rules.narrow(path, RuleSet::kTooManyDigits);
  };
  for (const Decimal& value : values) {
    if (rules.fuel().out()) break;
    if ((min && value < min->value) || (max && value > max->value)) continue;
    const NumberBound beside = {.value = value, .exclusive = true};
    add(min, beside);
    min = beside;
  }
  add(min, max);
  return rules.choice(ways);
}

}  // namespace

Result<Node> SchemaBuilder::build_string(const json::object& schema, const json::array& refused,
                                         const std::string& path) {
  const PatternBounds bounds = {.min_length = length_or(schema, "minLength", 0),
                                .max_length = length_or(schema, "maxLength", RuleSet::kUnbounded)};
  StringForm form;
  form.bounds = bounds;
  if (bounds.max_length != RuleSet::kUnbounded && bounds.max_length < bounds.min_length) {
    return rules_.nothing();
  }
  add_patterns(schema, kPatterns, form.all);
  add_patterns(schema, kNoPatterns, form.never);
  const json::value* format = schema.if_contains("format");
  const std::string of_format = format == nullptr ? "" : format_pattern(format->get_string());
  if (!of_format.empty()) form.all.push_back(of_format);
  std::vector<std::string> others;
  for (const json::value& value : refused) {
    if (is_string(value)) others.emplace_back(value.get_string());
  }
  const bool is_plain = form.all.empty() && form.never.empty();
  const bool is_bounded = bounds.min_length > 0 || bounds.max_length != RuleSet::kUnbounded;
  if (is_plain && others.empty()) {
    return is_bounded ? text_.string(bounds.min_length, bounds.max_length) : text_.string();
  }
  if (is_plain && !is_bounded) return text_.string_other_than(others);
  if (!others.empty()) form.never.push_back(pattern_of_values(others));
  const char* keyword = !of_format.empty() && form.all.size() == 1 ? "format" : "pattern";
  return strings(form, path_to(path, keyword));
}

Result<Node> SchemaBuilder::strings(const StringForm& form, const std::string& path) {
  std::string key =
      fmt::format("{} {} {} ", form.bounds.min_length, form.bounds.max_length, form.all.size());
  for (const std::vector<std::string>* patterns : {&form.all, &form.never}) {
    for (const std::string& one : *patterns) key += fmt::format("{}:{}", one.size(), one);
  }
  if (const auto known = strings_.find(key); known != strings_.end()) return known->second;
  Result<Node> node = build_string_form(rules_, form);
  if (!node) {
    Error error = node.error();
    error.where = path;
    return tl::unexpected(std::move(error));
  }
  strings_.emplace(key, *node);
  return node;
}

Result<Node> SchemaBuilder::build_number(std::string_view type, const json::object& schema,
                                         const json::array& refused, const std::string& path) {
  bool integer = type == "integer";
  NumberForm form = {.has_whole = type != kFraction};
  std::optional<NamedBound> min = tightest(schema, "minimum", "exclusiveMinimum");
  std::optional<NamedBound> max = tightest(schema, "maximum", "exclusiveMaximum");
  const json::value* multiple = schema.if_contains("multipleOf");
  int64_t divisor = 1;
  if (multiple != nullptr) {
    const Decimal step = *decimal_of(*multiple);
    const int32_t fraction = fraction_of(step);
    if (fraction > 0) {
      form.max_fraction = static_cast<size_t>(fraction);
    } else {
      const std::optional<int64_t> whole = step.to_int64();
      if (!whole) {
        return bad("is not supported other than whole numbers below 2^63, 0.1, 0.01 and so on",
                   path_to(path, "multipleOf"));
      }
      if (!form.has_whole) return rules_.nothing();
      divisor = *whole;
      integer = true;  // multiples of whole numbers are whole
    }
  }
  if (min && max &&
      (min->value > max->value ||
       (min->value == max->value && (min->exclusive || max->exclusive)))) {
    return rules_.nothing();
  }
  for (std::optional<NamedBound>* side : {&min, &max}) {
    const std::optional<NamedBound>& other = side == &min ? max : min;
    if (!*side) continue;
    const bool is_far = (*side)->value.is_negative() == (side == &min);
    const int64_t of_other = other ? other->value.num_whole_digits() : 0;
    const int64_t digits = (*side)->value.num_whole_digits();
    // Integers have 18 digits at most where a side is open, multiples any number.
    if (is_far && divisor == 1 && digits > std::max(kMaxFarDigits, of_other + 1)) {
      side->reset();
    } else if (digits > kMaxBoundDigits ||
               (!integer && (*side)->value.num_fraction_digits() > kMaxBoundDigits)) {
      return bad(fmt::format("a bound of more than {} digits is not supported", kMaxBoundDigits),
                 path_to(path, (*side)->keyword));
    }
  }
  for (const json::value& value : refused) {
    if (is_number(value) && decimal_of(value)->num_whole_digits() > kMaxBoundDigits) {
      return bad(fmt::format("of a value of more than {} digits is not supported", kMaxBoundDigits),
                 path_to(path, "not"));
    }
  }
  if (!integer) {
    const bool any = std::any_of(refused.begin(), refused.end(), is_number);
    const bool is_free = !min && !max && !any && multiple == nullptr && form.has_whole;
    return is_free ? text_.number() : numbers_other_than(rules_, min, max, form, refused, path);
  }
  std::optional<Decimal> low;
  std::optional<Decimal> high;
  if (min) {
    low = min->value.ceil();
    if (min->exclusive && min->value.is_whole()) low = low->plus_one();
  }
  if (max) {
    high = max->value.floor();
    if (max->exclusive && max->value.is_whole()) high = high->minus_one();
  }
  const bool is_any = divisor == 1;
  if (is_any && !refused.empty()) return integers_other_than(rules_, low, high, refused);
  if (is_any) return low || high ? integer_range(rules_, low, high) : text_.integer();
  if (std::any_of(refused.begin(), refused.end(), is_number)) {
    return bad("of numbers is not supported beside multipleOf", path_to(path, "not"));
  }
  auto node = multiples(rules_, divisor, low, high);
  if (!node) return bad(node.error().message, path_to(path, "multipleOf"));
  return node;
}

}  // namespace rudder::constraint
