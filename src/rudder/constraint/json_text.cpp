#include "rudder/constraint/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <string>
#include <vector>

#include "rudder/base/exact_json.h"

namespace rudder::constraint {

namespace json = boost::json;

namespace {

using Node = RuleSet::Node;

constexpr int32_t kMaxIndent = 32;
// Digits that a number without bounds may have: what an int64 and a double hold. A model that runs
// into endless digits is ended.
constexpr int32_t kIntegerDigits = 18;
constexpr int32_t kFractionDigits = 17;

struct ShortEscape {
  uint32_t character;
  char letter;
};
constexpr ShortEscape kShortEscapes[] = {{'"', '"'},  {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'},
                                         {'\n', 'n'}, {'\r', 'r'},  {'\t', 't'}};

}  // namespace

const CharSet& must_escape() {
  static const CharSet set = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
  return set;
}

char short_escape(uint32_t character) {
  const auto* const found =
      std::find_if(std::begin(kShortEscapes), std::end(kShortEscapes),
                   [&](const ShortEscape& known) { return known.character == character; });
  return found == std::end(kShortEscapes) ? '\0' : found->letter;
}

std::string json_spelling(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (const char letter = short_escape(byte); letter != '\0') {
      out += {'\\', letter};
    } else if (byte < 0x20) {
      out += fmt::format("\\u{:04x}", byte);
    } else {
      out.push_back(c);
    }
  }
  return out;
}

Node json_char(RuleSet& rules, const CharSet& set) {
  std::vector<Node> ways;
  const CharSet plain = set.without(must_escape());
  if (!plain.empty()) ways.push_back(rules.chars(plain));
  CharSet letters;
  CharSet control[2];  // the last digit of \u000x and of \u001x
  for (const ShortEscape& escape : kShortEscapes) {
    if (set.contains(escape.character)) {
      letters.add(static_cast<uint8_t>(escape.letter), static_cast<uint8_t>(escape.letter));
    }
  }
  for (uint32_t c = 0; c < 0x20; ++c) {
    if (short_escape(c) != '\0' || !set.contains(c)) continue;
    const auto digit = static_cast<uint8_t>("0123456789abcdef"[c % 16]);
    control[c / 16].add(digit, digit);
  }
  if (!letters.empty()) ways.push_back(rules.sequence({rules.literal("\\"), rules.chars(letters)}));
  for (const int high : {0, 1}) {
    if (control[high].empty()) continue;
    ways.push_back(
        rules.sequence({rules.literal(fmt::format("\\u00{}", high)), rules.chars(control[high])}));
  }
  return rules.choice(ways);
}

JsonText::JsonText(RuleSet& rules, JsonSpace space) : rules_(rules) {
  if (space == JsonSpace::kCompact) {
    inside_ = rules.empty();
    comma_ = rules.literal(", ");
    colon_ = rules.literal(": ");
  } else {
    const Node indent = rules.repeat(rules.chars({{' ', ' '}, {'\t', '\t'}}), 0, kMaxIndent);
    inside_ = rules.share(rules.choice(
        {rules.empty(), rules.literal(" "), rules.sequence({rules.literal("\n"), indent})}));
    comma_ = rules.share(rules.sequence({inside_, rules.literal(","), inside_}));
    colon_ = rules.share(
        rules.sequence({rules.optional(rules.literal(" ")), rules.literal(":"), inside_}));
  }
  define_values();
}

void JsonText::define_values() {
  string_ = string(0, RuleSet::kUnbounded);
  const Node digit = rules_.chars({{'0', '9'}});
  const Node whole = rules_.choice(
      {rules_.literal("0"),
       rules_.sequence({rules_.chars({{'1', '9'}}), rules_.repeat(digit, 0, kIntegerDigits - 1)})});
  integer_ = rules_.share(rules_.sequence({rules_.optional(rules_.literal("-")), whole}));
  const Node fraction =
      rules_.sequence({rules_.literal("."), rules_.repeat(digit, 1, kFractionDigits)});
  const Node exponent = rules_.sequence({rules_.chars({{'e', 'e'}, {'E', 'E'}}),
                                         rules_.optional(rules_.chars({{'+', '+'}, {'-', '-'}})),
                                         rules_.repeat(digit, 1, 2)});
  number_ = rules_.share(
      rules_.sequence({integer_, rules_.optional(fraction), rules_.optional(exponent)}));

  const int32_t value = rules_.add_rule();
  value_ = rules_.rule(value);
  const Node item = rules_.sequence({value_});
  array_ = rules_.share(rules_.sequence(
      {rules_.literal("["), inside_,
       rules_.optional(rules_.sequence(
           {item, rules_.repeat(rules_.sequence({comma_, item}), 0, RuleSet::kUnbounded),
            inside_})),
       rules_.literal("]")}));
  const Node pair = rules_.sequence({string_, colon_, value_});
  object_ = rules_.share(rules_.sequence(
      {rules_.literal("{"), inside_,
       rules_.optional(rules_.sequence(
           {pair, rules_.repeat(rules_.sequence({comma_, pair}), 0, RuleSet::kUnbounded),
            inside_})),
       rules_.literal("}")}));
  rules_.define(value, rules_.choice({object_, array_, string_, number_, boolean(), null()}));
}

Node JsonText::string(int32_t min_length, int32_t max_length) {
  return rules_.terminal({.set = CharSet::all(),
                          .pattern = "",
                          .any_spelling = true,
                          .min = min_length,
                          .max = max_length,
                          .excluded = {}});
}

Node JsonText::boolean() {
  return rules_.choice({rules_.literal("true"), rules_.literal("false")});
}

Node JsonText::null() {
  return rules_.literal("null");
}

Node JsonText::quoted(std::string_view text) {
  return rules_.literal('"' + json_spelling(text) + '"');
}

Node JsonText::constant(const json::value& value) {
  std::vector<Node> parts;
  switch (value.kind()) {
    case json::kind::string:
      return is_number(value) ? rules_.literal(to_json_text(value)) : quoted(value.get_string());
    case json::kind::array:
      parts = {rules_.literal("["), inside_};
      for (const json::value& item : value.get_array()) {
        if (parts.size() > 2) parts.push_back(comma_);
        parts.push_back(constant(item));
      }
      if (parts.size() > 2) parts.push_back(inside_);
      parts.push_back(rules_.literal("]"));
      return rules_.sequence(parts);
    case json::kind::object:
      parts = {rules_.literal("{"), inside_};
      for (const auto& field : value.get_object()) {
        if (parts.size() > 2) parts.push_back(comma_);
        parts.insert(parts.end(), {quoted(field.key()), colon_, constant(field.value())});
      }
      if (parts.size() > 2) parts.push_back(inside_);
      parts.push_back(rules_.literal("}"));
      return rules_.sequence(parts);
    default:
      return rules_.literal(to_json_text(value));
  }
}

Node JsonText::string_other_than(const std::vector<std::string>& excluded) {
  return rules_.terminal({.set = CharSet::all(), .pattern = "", .excluded = excluded});
}

}  // namespace rudder::constraint
