// Numbers by which the items of a list differ: one spelling each, so that equal numbers are equal
// texts (unique_texts.h).
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "rudder/constraint/pattern_dfa.h"
#include "rudder/constraint/schema_builder.h"
#include "rudder/constraint/string_form.h"
#include "rudder/constraint/text_counts.h"

namespace rudder::constraint {

namespace {

using Node = RuleSet::Node;

// No exponent, no zero that says nothing, no sign of zero. At most 15 digits, which a double tells
// apart.
constexpr char kOneSpelling[] =
    "0|-?[1-9][0-9]{0,14}|-?[1-9][0-9]{0,5}\\.[0-9]{0,8}[1-9]|-?0\\.[0-9]{0,13}[1-9]";
constexpr size_t kMaxNumberPattern = 16'000;  // bytes

// A character in an expression, also inside of brackets.
std::string escaped_char(uint32_t c) {
  return c >= '0' && c <= '9' ? std::string(1, static_cast<char>(c)) : fmt::format("\\x{:02x}", c);
}

}  // namespace

// What the node's texts match from end to end. Nothing where it refers to itself, is no text of a
// number, or is too long.
std::optional<std::string> SchemaBuilder::pattern_of(Node node, int depth) {
  constexpr int kMaxDepth = 200;
  constexpr uint32_t kMaxChar = 0x7F;
  const RuleSet::Data& data = rules_.data(node);
  if (depth > kMaxDepth || !rules_.fuel().burn(20)) return std::nullopt;
  std::string out;
  switch (data.kind) {
    case RuleSet::Kind::kEmpty:
      return out;
    case RuleSet::Kind::kLiteral:
      for (const char c : data.text) out += escaped_char(static_cast<unsigned char>(c));
      return out;
    case RuleSet::Kind::kChars:
      for (const CharRange& range : data.set.ranges()) {
        if (range.last > kMaxChar) return std::nullopt;
        out += escaped_char(range.first) + '-' + escaped_char(range.last);
      }
      return '[' + out + ']';
    case RuleSet::Kind::kRule:
      return pattern_of(rules_.body(data.index), depth + 1);
    case RuleSet::Kind::kSequence:
    case RuleSet::Kind::kChoice:
    case RuleSet::Kind::kRepeat:
      break;
    default:
      return std::nullopt;
  }
  const bool is_choice = data.kind == RuleSet::Kind::kChoice;
  for (const Node part : data.parts) {
    if (is_choice && part == rules_.nothing()) continue;
    const std::optional<std::string> one = pattern_of(part, depth + 1);
    if (!one || out.size() + one->size() > kMaxNumberPattern) return std::nullopt;
    if (is_choice && !out.empty()) out.push_back('|');
    out += is_choice ? "(?:" + *one + ")" : *one;
  }
  out = "(?:" + out + ")";
  if (data.kind != RuleSet::Kind::kRepeat) return out;
  const bool is_open = data.max == RuleSet::kUnbounded;
  return out + fmt::format("{{{},{}}}", data.min, is_open ? "" : std::to_string(data.max));
}

// The node as a terminal that differs within its list.
Result<Node> SchemaBuilder::unique_number(Node node) {
  if (node == rules_.nothing()) return node;
  const std::optional<std::string> pattern = pattern_of(node, 0);
  if (rules_.fuel().out()) return tl::unexpected(rules_.fuel().error());
  std::optional<ByteAutomaton> automaton;
  Terminal one;
  one.quoted = false;
  one.unique = true;
  if (pattern) {
    one.pattern = *pattern;
    one.also = {kOneSpelling};
    StringForm form;
    form.all = {*pattern, kOneSpelling};
    RUDDER_TRY(automaton, string_automaton(rules_.fuel(), form, false));
    if (rules_.fuel().out()) return tl::unexpected(rules_.fuel().error());
  }
  if (!automaton) {
    has_lost_mark_ = true;
    return rules_.nothing();
  }
  if (automaton->missing[ByteAutomaton::kBody] == ByteAutomaton::kNever) return rules_.nothing();
  if (!rules_.fuel().burn(std::ssize(automaton->next))) {
    return tl::unexpected(rules_.fuel().error());
  }
  unique_texts_ = std::min(unique_texts_, text_counts(*automaton, false)[ByteAutomaton::kBody]);
  one.automaton = std::make_shared<ByteAutomaton>(std::move(*automaton));
  return rules_.terminal(one);
}

}  // namespace rudder::constraint
