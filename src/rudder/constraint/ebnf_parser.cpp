#include "rudder/constraint/ebnf_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rudder/base/utf8.h"
#include "rudder/constraint/pattern.h"

namespace rudder::constraint {
namespace {

using Node = RuleSet::Node;

constexpr int kMaxBrackets = 500;
constexpr int64_t kMaxTimes = 1'000'000;

bool is_name_char(char c) {
  return c == '_' || c == '-' || c == '.' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         (c >= '0' && c <= '9');
}

class EbnfParser {
 public:
  EbnfParser(RuleSet& rules, std::string_view text) : rules_(rules), text_(text) {}

  Result<Node> parse();

 private:
  struct Rule {
    int32_t id = 0;
    bool is_defined = false;
    size_t used_at = 0;
  };

  tl::unexpected<Error> bad(std::string_view what) const { return bad_at(at_, what); }
  tl::unexpected<Error> bad_at(size_t at, std::string_view what) const {
    const auto line =
        std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at), '\n');
    return fail(ErrorCode::kInvalidArgument, fmt::format("line {}: {}", line + 1, what));
  }
  char peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool more() const { return at_ < text_.size(); }
  bool take(std::string_view what) {
    if (!text_.substr(at_).starts_with(what)) return false;
    at_ += what.size();
    return true;
  }
  void skip_space();
  std::string_view name();
  // The next thing is a name that a rule begins with.
  bool at_rule();
  Rule& rule(std::string_view name);

  Result<void> definition();
  Result<Node> choice(int depth);
  Result<Node> sequence(int depth);
  Result<Node> element(int depth);
  Result<Node> repeated(Node node);
  Result<Node> token();
  Result<Node> call(std::string_view function);
  Result<std::string> string();
  Result<CharSet> char_class();
  Result<uint32_t> character();
  Result<uint32_t> hex(size_t digits);
  std::optional<int64_t> integer();

  RuleSet& rules_;
  const std::string_view text_;
  size_t at_ = 0;
  std::unordered_map<std::string, Rule> known_;
};

void EbnfParser::skip_space() {
  while (more()) {
    const char c = peek();
    if (c == '#') {
      at_ = std::min(text_.find_first_of("\r\n", at_), text_.size());
    } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      ++at_;
    } else {
      return;
    }
  }
}

std::string_view EbnfParser::name() {
  const size_t begin = at_;
  while (more() && is_name_char(peek())) ++at_;
  return text_.substr(begin, at_ - begin);
}

bool EbnfParser::at_rule() {
  const size_t begin = at_;
  const bool named = !name().empty();
  skip_space();
  const bool defined = named && text_.substr(at_).starts_with("::=");
  at_ = begin;
  return defined;
}

EbnfParser::Rule& EbnfParser::rule(std::string_view name) {
  const auto [known, is_new] = known_.try_emplace(std::string(name));
  if (is_new) known->second = {.id = rules_.add_rule(), .used_at = at_};
  return known->second;
}

Result<Node> EbnfParser::parse() {
  if (find_invalid_utf8(text_)) return fail(ErrorCode::kInvalidArgument, "is not UTF-8");
  for (skip_space(); more(); skip_space()) RUDDER_TRY_VOID(definition());
  const auto root = known_.find("root");
  if (root == known_.end() || !root->second.is_defined) {
    return fail(ErrorCode::kInvalidArgument, "has no rule 'root'");
  }
  for (const auto& [name, rule] : known_) {
    if (!rule.is_defined) return bad_at(rule.used_at, fmt::format("no rule '{}' is there", name));
  }
  if (rules_.fuel().out()) return tl::unexpected(rules_.fuel().error());
  return rules_.rule(root->second.id);
}

Result<void> EbnfParser::definition() {
  const std::string name(this->name());
  if (name.empty()) return bad("a rule's name is missing");
  if (peek() == '[') return bad("attributes of rules are not supported");
  skip_space();
  if (!take("::=")) return bad("a '::=' is missing");
  Rule& defined = rule(name);
  if (defined.is_defined) return bad(fmt::format("the rule '{}' is there twice", name));
  defined.is_defined = true;
  const int32_t id = defined.id;
  RUDDER_TRY(const Node body, choice(0));
  if (more() && !at_rule()) return bad("a rule ends where something else goes on");
  rules_.define(id, body);
  return {};
}

Result<Node> EbnfParser::choice(int depth) {
  if (depth > kMaxBrackets) return bad("is nested too deeply");
  if (rules_.fuel().out()) return tl::unexpected(rules_.fuel().error());
  skip_space();
  // One of several ways may be empty, as GBNF has it; a rule that says nothing is a slip.
  const bool is_missing = !more() || peek() == ')' || at_rule();
  if (is_missing) return bad("something is missing here");
  std::vector<Node> ways;
  do {
    RUDDER_TRY(const Node way, sequence(depth));
    ways.push_back(way);
  } while (take("|"));
  return rules_.choice(ways);
}

Result<Node> EbnfParser::sequence(int depth) {
  std::vector<Node> parts;
  for (skip_space(); more() && peek() != '|' && peek() != ')' && !at_rule(); skip_space()) {
    RUDDER_TRY(Node part, element(depth));
    for (bool more = true; more;) {
      const size_t begin = at_;
      RUDDER_TRY(part, repeated(part));
      skip_space();
      more = at_ != begin && (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{');
    }
    parts.push_back(part);
  }
  return rules_.sequence(parts);  // of no parts: the empty text
}

Result<Node> EbnfParser::element(int depth) {
  if (take("(=")) return bad("look-ahead is not supported");
  if (take("(")) {
    RUDDER_TRY(const Node node, choice(depth + 1));
    if (!take(")")) return bad("a ')' is missing");
    return node;
  }
  if (peek() == '"') {
    RUDDER_TRY(const std::string text, string());
    return rules_.literal(text);
  }
  if (peek() == '[') {
    RUDDER_TRY(const CharSet set, char_class());
    return rules_.chars(set);
  }
  if (const size_t length = description_length(text_.substr(at_)); length > 0) {
    const std::optional<Terminal> terminal = read_description(text_.substr(at_, length));
    at_ += length;
    if (!terminal) return bad("a noncharacter of Unicode is no part of a grammar");
    return rules_.terminal(*terminal);
  }
  if (peek() == '<' || (peek() == '!' && peek(1) == '<')) return token();
  const std::string_view name = this->name();
  if (name.empty()) return bad("this is no part of a grammar");
  if (name.find_first_not_of('.') == std::string_view::npos) {  // each is any character
    return rules_.repeat(rules_.chars(CharSet::all()), static_cast<int32_t>(name.size()),
                         static_cast<int32_t>(name.size()));
  }
  if (peek() == '(' && name[0] >= 'A' && name[0] <= 'Z') return call(name);
  return rules_.rule(rule(name).id);
}

// GBNF's <[12]>, and !<[12]> for all others.
Result<Node> EbnfParser::token() {
  TokenSet set;
  set.others = take("!");
  if (!take("<[")) return bad("tokens are named by their ids here: '<[12]>', not by their text");
  const std::optional<int64_t> id = integer();
  if (!id || *id > std::numeric_limits<int32_t>::max()) return bad("a token's id is missing");
  if (!take("]>")) return bad("a ']>' is missing");
  set.ids = {static_cast<int32_t>(*id)};
  return rules_.tokens(std::move(set));
}

// Token(1, 2) and such, from the bracket on.
Result<Node> EbnfParser::call(std::string_view function) {
  ++at_;
  skip_space();
  if (function == "Regex") {
    RUDDER_TRY(const std::string pattern, string());
    skip_space();
    if (!take(")")) return bad("a ')' is missing");
    return build_pattern(rules_, pattern, PatternUse::kWholeText);
  }
  if (function != "Token" && function != "ExcludeToken") {
    return bad(fmt::format("'{}' is not supported", function.substr(0, 64)));
  }
  TokenSet set;
  set.others = function == "ExcludeToken";
  do {
    skip_space();
    const std::optional<int64_t> id = integer();
    if (!id || *id > std::numeric_limits<int32_t>::max()) return bad("a token's id is missing");
    set.ids.push_back(static_cast<int32_t>(*id));
    skip_space();
  } while (take(","));
  if (!take(")")) return bad("a ')' is missing");
  std::sort(set.ids.begin(), set.ids.end());
  return rules_.tokens(std::move(set));
}

Result<Node> EbnfParser::repeated(Node node) {
  skip_space();
  if (take("*")) return rules_.repeat(node, 0, RuleSet::kUnbounded);
  if (take("+")) return rules_.repeat(node, 1, RuleSet::kUnbounded);
  if (take("?")) return rules_.optional(node);
  if (!take("{")) return node;
  skip_space();
  const std::optional<int64_t> min = integer();
  skip_space();
  std::optional<int64_t> max = min;
  bool open = false;
  if (take(",")) {
    skip_space();
    max = integer();
    open = !max;
    skip_space();
  }
  if (!take("}") || (!min && !max)) return bad("a repetition is '{2}', '{2,}' or '{2,5}'");
  const int64_t least = min.value_or(0);
  if (least > kMaxTimes || (!open && *max > kMaxTimes)) {
    return bad(fmt::format("more than {} repetitions", kMaxTimes));
  }
  if (!open && *max < least) return bad("a repetition is the wrong way round");
  return rules_.repeat(node, static_cast<int32_t>(least),
                       open ? RuleSet::kUnbounded : static_cast<int32_t>(*max));
}

std::optional<int64_t> EbnfParser::integer() {
  const size_t begin = at_;
  int64_t value = 0;
  for (; peek() >= '0' && peek() <= '9'; ++at_) {
    value = std::min(value * 10 + (peek() - '0'), int64_t{1} << 40);
  }
  return at_ == begin ? std::nullopt : std::optional(value);
}

Result<std::string> EbnfParser::string() {
  if (!take("\"")) return bad("a '\"' is missing");
  std::string out;
  while (more() && peek() != '"') {
    if (peek() == '\n' || peek() == '\r') break;
    RUDDER_TRY(const uint32_t c, character());
    append_utf8(out, c);
  }
  if (!take("\"")) return bad("a '\"' is missing");
  return out;
}

Result<CharSet> EbnfParser::char_class() {
  ++at_;
  const bool negated = take("^");
  std::vector<CharRange> ranges;
  while (more() && peek() != ']') {
    if (peek() == '\n' || peek() == '\r') break;
    RUDDER_TRY(const uint32_t first, character());
    uint32_t last = first;
    if (peek() == '-' && peek(1) != ']') {
      ++at_;
      RUDDER_TRY(last, character());
    }
    if (last < first) return bad("a range in a class is the wrong way round");
    ranges.push_back({first, last});
  }
  if (!take("]")) return bad("a ']' is missing");
  const CharSet set = CharSet::of(std::move(ranges));
  return negated ? set.complement() : set.without(CharSet::all().complement());
}

Result<uint32_t> EbnfParser::hex(size_t digits) {
  uint32_t value = 0;
  for (size_t i = 0; i < digits; ++i, ++at_) {
    const char c = peek();
    const char lower = static_cast<char>(c | 0x20);
    const bool decimal = c >= '0' && c <= '9';
    if (!decimal && (lower < 'a' || lower > 'f')) return bad("a hexadecimal digit is missing");
    value = value * 16 + static_cast<uint32_t>(decimal ? c - '0' : lower - 'a' + 10);
  }
  if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) return bad("no such character");
  return value;
}

Result<uint32_t> EbnfParser::character() {
  if (!more()) return bad("a character is missing");
  if (peek() != '\\') return static_cast<uint32_t>(next_char(text_, at_));
  ++at_;
  const char c = peek();
  ++at_;
  switch (c) {
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    case 'f':
      return '\f';
    case 'v':
      return '\v';
    case 'b':
      return '\b';
    case 'a':
      return '\a';
    case 'e':
      return 0x1B;
    case '0':
      return 0;
    case 'x':
      return hex(2);
    case 'u':
      return hex(4);
    case 'U':
      return hex(8);
    default:
      break;
  }
  const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  if (is_letter || static_cast<unsigned char>(c) < ' ' || static_cast<unsigned char>(c) >= 0x80) {
    --at_;
    return bad("the escape is not supported");
  }
  return static_cast<uint32_t>(c);
}

bool is_lark_directive(std::string_view line) {
  constexpr std::array<std::string_view, 8> kDirectives = {
      "%import", "%ignore", "%declare", "%override", "%extend", "%llguidance", "%lark", "%json"};
  return std::ranges::any_of(kDirectives, [&](std::string_view word) {
    return line.starts_with(word) &&
           (line.size() == word.size() || !is_name_char(line[word.size()]));
  });
}

// Whether the line begins as one of a Lark grammar: a rule with a colon, or a directive.
bool is_lark_line(std::string_view line) {
  if (is_lark_directive(line)) return true;
  while (!line.empty() && std::string_view("?!@").find(line.front()) != std::string_view::npos) {
    line.remove_prefix(1);
  }
  size_t end = 0;
  while (end < line.size() && is_name_char(line[end])) ++end;  // with a priority: "name.2"
  if (end == 0) return false;
  if (end < line.size() && (line[end] == '{' || line[end] == '[')) {  // parameters, attributes
    end = std::min(line.find(line[end] == '{' ? '}' : ']', end), line.size() - 1) + 1;
  }
  line.remove_prefix(end);
  line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  return line.starts_with(':') && !line.starts_with("::");
}

// The name of a rule of EBNF, or of GBNF, and its "::=".
bool is_ebnf_line(std::string_view line) {
  size_t end = 0;
  while (end < line.size() && is_name_char(line[end])) ++end;
  line.remove_prefix(end);
  line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  return end > 0 && line.starts_with("::=");
}

// Whether the first line that says something is one of a Lark grammar, or a later one is a
// directive of it, and no rule is of EBNF.
bool is_lark(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // a mark of UTF-8
  bool is_first = true;
  bool is_lark = false;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of("\r\n"), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    if (line.empty() || line.starts_with("//") || line.starts_with('#')) continue;
    if (is_ebnf_line(line)) return false;
    is_lark = is_lark || (is_first ? is_lark_line(line) : is_lark_directive(line));
    is_first = false;
  }
  return is_lark;
}

}  // namespace

Result<Node> build_ebnf(RuleSet& rules, std::string_view text) {
  Result<Node> node = EbnfParser(rules, text).parse();
  if (!node && !rules.fuel().out() && is_lark(text)) {
    return fail(ErrorCode::kInvalidArgument,
                "is a Lark grammar, which is not supported: write it as EBNF, with 'root ::= ...'");
  }
  return node;
}

}  // namespace rudder::constraint
