// Strings and numbers of SchemaBuilder.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <utility>

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

constexpr double kMaxBound = 1e14;   // of numbers, see number_range
constexpr double kMaxWhole = 1e18;   // of whole numbers
constexpr int32_t kMaxFraction = 9;  // digits that `multipleOf` may ask for

int32_t length_or(const json::object& schema, std::string_view key, int32_t otherwise) {
  const json::value* value = schema.if_contains(key);
  return value == nullptr ? otherwise : static_cast<int32_t>(value->to_number<double>());
}

void add_patterns(const json::object& schema, std::string_view key,
                  std::vector<std::string>& patterns) {
  const json::value* list = schema.if_contains(key);
  if (list == nullptr) return;
  for (const json::value& one : list->get_array()) patterns.emplace_back(one.get_string());
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
    if (value.is_string()) others.emplace_back(value.get_string());
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
  auto min = bound("minimum", "exclusiveMinimum", 1);
  auto max = bound("maximum", "exclusiveMaximum", -1);
  const json::value* multiple = schema.if_contains("multipleOf");
  int64_t divisor = 1;
  int32_t fraction = 0;  // digits, of multiples of 0.1, 0.01...
  if (multiple != nullptr) {
    const double value = multiple->to_number<double>();
    if (!integer && value < 1) {
      for (int32_t digits = 1; digits <= kMaxFraction && fraction == 0; ++digits) {
        if (value == std::pow(10.0, -digits)) fraction = digits;
      }
    }
    if (fraction == 0 && (value != std::floor(value) || value > kMaxWhole)) {
      return bad("is not supported other than whole numbers, 0.1, 0.01 and so on",
                 path_to(path, "multipleOf"));
    }
    if (fraction == 0) {
      divisor = static_cast<int64_t>(value);
      integer = true;  // multiples of whole numbers are whole
    }
  }
  // Numbers have fewer digits than what is beyond these.
  const double most = integer ? kMaxWhole : kMaxBound;
  if (min && min->value <= -most) min.reset();
  if (max && max->value >= most) {
    max.reset();
    if (!integer) max = NumberBound{.value = most, .exclusive = false};
  }
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
    if (fraction > 0) return number_range(rules_, min, max, static_cast<size_t>(fraction));
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
    if (rules_.fuel().out()) break;
    if ((low && value < *low) || (high && value > *high)) continue;
    if (!low || value - 1 >= *low) ways.push_back(integer_range(rules_, low, value - 1));
    low = value + 1;
  }
  if (!low || !high || *low <= *high) ways.push_back(integer_range(rules_, low, high));
  return rules_.choice(ways);
}

}  // namespace rudder::constraint
