#include "rudder/constraint/schema_values.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "rudder/base/exact_json.h"
#include "rudder/base/utf8.h"
#include "rudder/constraint/number_range.h"
#include "rudder/constraint/pattern.h"
#include "rudder/constraint/schema_keywords.h"
#include "rudder/constraint/schema_merge.h"
#include "rudder/constraint/schema_parts.h"
#include "rudder/constraint/string_form.h"
#include "rudder/constraint/string_formats.h"

namespace rudder::constraint {

namespace json = boost::json;

namespace {

constexpr int kMaxFitDepth = 64;

Fit is(bool fits) {
  return fits ? Fit::kYes : Fit::kNo;
}

// Both must hold, or one of them.
Fit both(Fit a, Fit b) {
  return std::min(a, b);
}
Fit either(Fit a, Fit b) {
  return std::max(a, b);
}
Fit opposite(Fit fit) {
  return fit == Fit::kUnknown ? fit : is(fit == Fit::kNo);
}

int64_t characters(std::string_view text) {
  int64_t count = 0;
  for (size_t pos = 0; pos < text.size(); ++count) next_char(text, pos);
  return count;
}

// "minLength" and the like.
Fit fit_count(std::string_view key, const json::value& operand, int64_t count) {
  const int64_t bound = operand.get_int64();
  return is(key.starts_with("min") ? count >= bound : count <= bound);
}

}  // namespace

Fit SchemaValues::matches(const std::string& pattern, std::string_view text) {
  Fit fits = Fit::kUnknown;
  for (const auto reading : {PatternReading::kNarrow, PatternReading::kWide}) {
    const bool is_wide = reading == PatternReading::kWide;
    const std::string key = (is_wide ? 'w' : 'n') + pattern;
    auto known = automata_.find(key);
    if (known == automata_.end()) {
      const auto tree = whole_pattern(pattern, PatternUse::kJsonString, {}, reading);
      if (!tree) return Fit::kUnknown;
      std::optional<ByteAutomaton> automaton = pattern_automaton(fuel_, *tree, true);
      if (!automaton) return Fit::kUnknown;
      known = automata_.emplace(key, std::move(*automaton)).first;
    }
    const bool takes = takes_string(known->second, text);
    if (!is_wide && takes) return Fit::kYes;
    if (is_wide && !takes) return Fit::kNo;
  }
  return fits;
}

Fit SchemaValues::fit_string(std::string_view key, const json::value& operand,
                             std::string_view text) {
  if (key == "minLength" || key == "maxLength") return fit_count(key, operand, characters(text));
  Fit fits = Fit::kYes;
  if (key == kUnique) return fits;
  if (key == "format") {
    const std::string narrow = format_pattern(operand.get_string());
    if (narrow.empty()) return Fit::kYes;
    if (matches(narrow, text) == Fit::kYes) return Fit::kYes;
    const Fit wide = matches(wide_format_pattern(operand.get_string()), text);
    return wide == Fit::kNo ? Fit::kNo : Fit::kUnknown;
  }
  for (const json::value& pattern : operand.get_array()) {
    const Fit one = matches(std::string(pattern.get_string()), text);
    fits = both(fits, key == kPatterns ? one : opposite(one));
  }
  return fits;
}

Fit SchemaValues::fit_number(std::string_view key, const json::value& operand,
                             const json::value& value) {
  const Decimal number = *decimal_of(value);
  const Decimal bound = *decimal_of(operand);
  if (key == "minimum") return is(number >= bound);
  if (key == "maximum") return is(number <= bound);
  if (key == "exclusiveMinimum") return is(number > bound);
  if (key == "exclusiveMaximum") return is(number < bound);
  const std::optional<bool> fits = is_multiple(number, bound);
  return fits ? is(*fits) : Fit::kUnknown;
}

Fit SchemaValues::fit_object(std::string_view key, const json::value& operand,
                             const json::object& schema, const json::object& value, int depth) {
  Fit fits = Fit::kYes;
  if (key == "required") {
    return is(std::all_of(operand.get_array().begin(), operand.get_array().end(),
                          [&](const json::value& name) {
                            return value.contains(std::string_view(name.get_string()));
                          }));
  }
  if (key == "minProperties" || key == "maxProperties") {
    return fit_count(key, operand, std::ssize(value));
  }
  if (key == kShapes) {
    for (const json::value& shape : operand.get_array()) {
      for (const auto& part : shape.get_object()) {
        fits = both(fits, fit_object(part.key(), part.value(), shape.get_object(), value, depth));
      }
    }
    return fits;
  }
  const auto named = [&](std::string_view map, std::string_view name) -> const json::value* {
    const json::value* fields = schema.if_contains(map);
    return fields == nullptr ? nullptr : fields->get_object().if_contains(name);
  };
  for (const auto& field : value) {
    const std::string_view name = field.key();
    if (key == "properties") {
      const json::value* one = named(key, name);
      if (one != nullptr) fits = both(fits, fit(*one, field.value(), depth + 1));
    } else if (key == "propertyNames") {
      fits = both(fits, fit(operand, json::string(name), depth + 1));
    } else if (key == "unevaluatedProperties") {
      return Fit::kUnknown;
    } else {
      const json::value* patterns = schema.if_contains("patternProperties");
      Fit covered = is(named("properties", name) != nullptr);
      for (const auto& pattern : patterns == nullptr ? json::object() : patterns->get_object()) {
        const Fit has = matches(std::string(pattern.key()), name);
        covered = either(covered, has);
        if (key == "patternProperties") {
          fits = both(fits, either(opposite(has), fit(pattern.value(), field.value(), depth + 1)));
        }
      }
      if (key == "additionalProperties") {
        fits = both(fits, either(covered, fit(operand, field.value(), depth + 1)));
      }
    }
  }
  return fits;
}

Fit SchemaValues::fit_array(std::string_view key, const json::value& operand,
                            const json::object& schema, const json::array& value, int depth) {
  if (key == "minItems" || key == "maxItems") {
    return fit_count(key, operand, std::ssize(value));
  }
  if (key == kContained) {
    Fit fits = Fit::kYes;
    for (const json::value& one : operand.get_array()) {
      fits = both(fits, fit_array("contains", one, schema, value, depth));
    }
    return fits;
  }
  if (key == "uniqueItems") {
    for (size_t i = 0; i < value.size(); ++i) {
      if (!fuel_.burn(2 * static_cast<int64_t>(i))) return Fit::kUnknown;
      for (size_t k = 0; k < i; ++k) {
        if (same_value(value[k], value[i])) return Fit::kNo;
      }
    }
    return Fit::kYes;
  }
  const json::value* prefix = schema.if_contains("prefixItems");
  const size_t num_first = prefix == nullptr ? 0 : prefix->get_array().size();
  Fit fits = key == "contains" ? Fit::kNo : Fit::kYes;
  for (size_t i = 0; i < value.size(); ++i) {
    if (key == "contains") {
      fits = either(fits, fit(operand, value[i], depth + 1));
    } else if (key == "prefixItems" && i < num_first) {
      fits = both(fits, fit(operand.get_array()[i], value[i], depth + 1));
    } else if (key == "items" && i >= num_first) {
      fits = both(fits, fit(operand, value[i], depth + 1));
    }
  }
  return fits;
}

Fit SchemaValues::fit_parts(std::string_view key, const json::array& parts,
                            const json::value& value, int depth) {
  Fit all = Fit::kYes;
  Fit any = Fit::kNo;
  size_t num_yes = 0;
  size_t num_unknown = 0;
  for (const json::value& part : parts) {
    if (key == kConditions) {
      const json::object& condition = part.get_object();
      const Fit holds = fit(condition.at("if"), value, depth + 1);
      const Fit then = fit(condition.at("then"), value, depth + 1);
      const Fit otherwise = fit(condition.at("else"), value, depth + 1);
      all = both(all, both(either(opposite(holds), then), either(holds, otherwise)));
      continue;
    }
    const Fit one = fit(part, value, depth + 1);
    num_yes += one == Fit::kYes ? 1 : 0;
    num_unknown += one == Fit::kUnknown ? 1 : 0;
    all = both(all, key == kNoneOf ? opposite(one) : one);
    any = either(any, one);
  }
  if (key == "anyOf") return any;
  if (key != "oneOf") return all;
  if (num_yes > 1) return Fit::kNo;
  return num_unknown > 0 ? Fit::kUnknown : is(num_yes == 1);
}

Fit SchemaValues::fit_keyword(std::string_view key, const json::value& operand,
                              const json::object& schema, const json::value& value, int depth) {
  if (key == "type") {
    const std::vector<std::string> types = types_of(schema);
    return is(std::any_of(types.begin(), types.end(),
                          [&](const std::string& type) { return value_has_type(value, type); }));
  }
  if (key == "nullable") return Fit::kYes;  // types_of() has it
  if (key == "const") return is(same_value(operand, value));
  if (key == "enum") {
    fuel_.burn(std::ssize(operand.get_array()));
    return is(lists_value(operand.get_array(), value));
  }
  if (key == "$ref") {
    const auto target = document_.resolve(operand.get_string(), "");
    return target ? fit(**target, value, depth + 1) : Fit::kUnknown;
  }
  if (operand.is_array() && (key == "allOf" || key == "anyOf" || key == "oneOf" || key == kNoneOf ||
                             key == kConditions)) {
    return fit_parts(key, operand.get_array(), value, depth);
  }
  switch (keyword_info(key).of) {
    case KeywordOf::kString:
      return is_string(value) ? fit_string(key, operand, value.get_string()) : Fit::kYes;
    case KeywordOf::kNumber:
      return is_number(value) ? fit_number(key, operand, value) : Fit::kYes;
    case KeywordOf::kObject:
      return value.is_object() ? fit_object(key, operand, schema, value.get_object(), depth)
                               : Fit::kYes;
    case KeywordOf::kArray:
      return value.is_array() ? fit_array(key, operand, schema, value.get_array(), depth)
                              : Fit::kYes;
    case KeywordOf::kAnything:
      break;
  }
  return Fit::kUnknown;
}

Fit SchemaValues::fit(const json::value& schema, const json::value& value, int depth) {
  constexpr int64_t kWorkOfFit = 20;
  if (schema.is_bool()) return is(schema.get_bool());
  if (depth > kMaxFitDepth || !fuel_.burn(kWorkOfFit)) return Fit::kUnknown;
  Fit fits = Fit::kYes;
  for (const auto& field : schema.get_object()) {
    if (keyword_info(field.key()).annotation) continue;
    const Fit one = fit_keyword(field.key(), field.value(), schema.get_object(), value, depth);
    if (one == Fit::kUnknown && depth == 0) unclear_ = field.key();
    fits = both(fits, one);
    if (fits == Fit::kNo) break;
  }
  return fits;
}

}  // namespace rudder::constraint
