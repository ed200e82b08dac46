#include "rudder/constraint/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <map>
#include <string>
#include <vector>

#include "rudder/base/json.h"
#include "rudder/constraint/utf8_text.h"

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

const CharSet& must_escape() {
  static const CharSet set = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
  return set;
}

CharSet hex_digits() {
  return {{'0', '9'}, {'a', 'f'}, {'A', 'F'}};
}

// \u0041, and a pair of surrogates for what is beyond; never half a pair.
Node unicode_escape(RuleSet& rules) {
  const Node hex = rules.chars(hex_digits());
  const Node no_d = rules.chars({{'0', '9'}, {'a', 'c'}, {'A', 'C'}, {'e', 'f'}, {'E', 'F'}});
  const Node d = rules.chars({{'d', 'd'}, {'D', 'D'}});
  const Node plain = rules.sequence({no_d, hex, hex, hex});
  const Node low_d = rules.sequence({d, rules.chars({{'0', '7'}}), hex, hex});
  const Node high =
      rules.sequence({d, rules.chars({{'8', '9'}, {'a', 'b'}, {'A', 'B'}}), hex, hex});
  const Node low = rules.sequence({d, rules.chars({{'c', 'f'}, {'C', 'F'}}), hex, hex});
  return rules.sequence(
      {rules.literal("u"),
       rules.choice({plain, low_d, rules.sequence({high, rules.literal("\\u"), low})})});
}

}  // namespace

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
    const bool is_short = std::any_of(std::begin(kShortEscapes), std::end(kShortEscapes),
                                      [&](const ShortEscape& s) { return s.character == c; });
    if (is_short || !set.contains(c)) continue;
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
  const Node escape = rules.choice({rules.chars({{'"', '"'},
                                                 {'\\', '\\'},
                                                 {'/', '/'},
                                                 {'b', 'b'},
                                                 {'f', 'f'},
                                                 {'n', 'n'},
                                                 {'r', 'r'},
                                                 {'t', 't'}}),
                                    unicode_escape(rules)});
  any_char_ = rules.choice(
      {rules.chars(must_escape().complement()), rules.sequence({rules.literal("\\"), escape})});
  define_values();
}

void JsonText::define_values() {
  const int32_t string = rules_.add_rule();
  string_ = rules_.rule(string);
  rules_.define(string, this->string(0, RuleSet::kUnbounded));
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
  const Node quote = rules_.literal("\"");
  return rules_.sequence({quote, rules_.repeat(any_char_, min_length, max_length), quote});
}

Node JsonText::boolean() {
  return rules_.choice({rules_.literal("true"), rules_.literal("false")});
}

Node JsonText::null() {
  return rules_.literal("null");
}

Node JsonText::quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const auto* const escape =
        std::find_if(std::begin(kShortEscapes), std::end(kShortEscapes),
                     [&](const ShortEscape& known) { return known.character == byte; });
    if (escape != std::end(kShortEscapes)) {
      out += {'\\', escape->letter};
    } else if (byte < 0x20) {
      out += fmt::format("\\u{:04x}", byte);
    } else {
      out.push_back(c);
    }
  }
  return rules_.literal(out + "\"");
}

Node JsonText::constant(const json::value& value) {
  std::vector<Node> parts;
  switch (value.kind()) {
    case json::kind::string:
      return quoted(value.get_string());
    case json::kind::double_:
      return rules_.literal(fmt::format("{}", value.get_double()));
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
  struct Trie {
    std::map<uint32_t, Trie> next;
    bool end = false;
  };
  Trie root;
  for (const std::string& text : excluded) {
    Trie* at = &root;
    for (const uint32_t c : code_points(text)) at = &at->next[c];
    at->end = true;
  }
  const Node quote = rules_.literal("\"");
  const Node rest = rules_.share(rules_.sequence(
      {rules_.repeat(json_char(rules_, CharSet::all()), 0, RuleSet::kUnbounded), quote}));
  const auto build = [&](const auto& self, const Trie& trie) -> Node {
    std::vector<Node> ways;
    if (!trie.end) ways.push_back(quote);
    CharSet taken;
    for (const auto& [c, child] : trie.next) {
      taken.add(c, c);
      ways.push_back(rules_.sequence({json_char(rules_, {{c, c}}), self(self, child)}));
    }
    ways.push_back(rules_.sequence({json_char(rules_, taken.complement()), rest}));
    return rules_.choice(ways);
  };
  return rules_.sequence({quote, build(build, root)});
}

}  // namespace rudder::constraint
