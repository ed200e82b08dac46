#include "rudder/constraint/pattern_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "rudder/base/utf8.h"
#include "rudder/constraint/rule_set.h"

namespace rudder::constraint {
namespace {

using Kind = PatternTree::Kind;

constexpr size_t kMaxPattern = 16 << 10;  // characters
constexpr int kMaxNesting = 100;
constexpr int32_t kMaxRepeat = 10'000;

// What a class escape stands for, and what its negation must leave out: characters that some
// dialect counts as digits, letters or spaces.
struct ClassEscape {
  CharSet narrow;
  CharSet wide;
};

ClassEscape class_escape(uint32_t letter) {
  const CharSet beyond_ascii = CharSet({{0, 0x7F}}).complement();
  CharSet narrow;
  CharSet wide;
  if (letter == 'd') {
    narrow = {{'0', '9'}};
    wide = beyond_ascii;
  } else if (letter == 'w') {
    narrow = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    wide = beyond_ascii;
  } else {
    narrow = {{'\t', '\r'}, {' ', ' '}};
    wide = {{0x1C, 0x1F},     {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680},
            {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
            {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
  }
  wide.add(narrow);
  return {.narrow = std::move(narrow), .wide = std::move(wide)};
}

void append_ranges(std::vector<CharRange>& ranges, const CharSet& set) {
  ranges.insert(ranges.end(), set.ranges().begin(), set.ranges().end());
}

class Parser {
 public:
  Parser(std::vector<uint32_t> text, PatternReading reading)
      : text_(std::move(text)), is_wide_(reading == PatternReading::kWide) {}

  Result<PatternTree> parse() {
    RUDDER_TRY(PatternTree tree, choice(0));
    if (at_ < text_.size()) return bad("')' has no '('");
    return tree;
  }

 private:
  tl::unexpected<Error> bad(std::string_view what) const {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("is not a pattern that can be followed: {} (at character {})", what, at_));
  }
  bool more() const { return at_ < text_.size(); }
  bool next_is(char c, size_t ahead = 0) const {
    return at_ + ahead < text_.size() && text_[at_ + ahead] == static_cast<uint32_t>(c);
  }
  bool take(char c) {
    if (!next_is(c)) return false;
    ++at_;
    return true;
  }

  Result<PatternTree> choice(int depth);
  Result<PatternTree> sequence(int depth);
  Result<PatternTree> atom(int depth);
  Result<PatternTree> group(int depth);
  Result<PatternTree> escape();
  Result<PatternTree> repeated(PatternTree part);
  Result<CharSet> char_class();
  // One member of a class: a character, or (a set in `set`) an escape that stands for several.
  struct Member {
    uint32_t character = 0;
    std::optional<ClassEscape> set;
    bool negated = false;
  };
  Result<Member> class_member();
  // After the backslash.
  Result<uint32_t> escaped_character(bool in_class);
  Result<uint32_t> hex(int digits);
  std::optional<int32_t> integer();

  const std::vector<uint32_t> text_;
  const bool is_wide_;
  size_t at_ = 0;
};

Result<PatternTree> Parser::choice(int depth) {
  if (depth > kMaxNesting) return bad("groups are nested too deeply");
  PatternTree tree;
  tree.kind = Kind::kChoice;
  do {
    RUDDER_TRY(PatternTree part, sequence(depth));
    tree.parts.push_back(std::move(part));
  } while (take('|'));
  if (tree.parts.size() > 1) return tree;
  PatternTree only = std::move(tree.parts[0]);
  return only;
}

Result<PatternTree> Parser::sequence(int depth) {
  PatternTree tree;
  while (more() && !next_is('|') && !next_is(')')) {
    RUDDER_TRY(PatternTree part, atom(depth));
    RUDDER_TRY(part, repeated(std::move(part)));
    tree.parts.push_back(std::move(part));
  }
  return tree;
}

Result<PatternTree> Parser::atom(int depth) {
  PatternTree tree;
  const uint32_t c = text_[at_];
  switch (c) {
    case '^':
    case '$':
      ++at_;
      tree.kind = c == '^' ? Kind::kStart : Kind::kEnd;
      return tree;
    case '(':
      return group(depth);
    case '[': {
      RUDDER_TRY(CharSet set, char_class());
      return of_chars(std::move(set));
    }
    case '.':
      ++at_;
      if (is_wide_) return of_chars(CharSet({{'\n', '\n'}}).complement());
      return of_chars(CharSet({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}).complement());
    case '\\':
      ++at_;
      return escape();
    case '*':
    case '+':
    case '?':
      return bad("nothing stands before a repetition");
    case '{':
      return bad("a '{' that is no repetition is written '\\{'");
    default:
      ++at_;
      return of_chars({{c, c}});
  }
}

Result<PatternTree> Parser::group(int depth) {
  ++at_;
  if (take('?')) {
    if (take('P')) {
      if (!next_is('<')) return bad("back-references are not supported");
    }
    if (next_is('=') || next_is('!') || (next_is('<') && (next_is('=', 1) || next_is('!', 1)))) {
      if (!is_wide_) return bad("look-around is not supported");
      at_ += next_is('<') ? 2 : 1;
      RUDDER_TRY_VOID(choice(depth + 1));
      if (!take(')')) return bad("a '(' has no ')'");
      return PatternTree();  // what it looks at may be so
    }
    if (take('<')) {
      while (more() && !next_is('>')) ++at_;
      if (!take('>')) return bad("a group's name has no end");
    } else if (!take(':')) {
      return bad("flags and special groups are not supported");
    }
  }
  RUDDER_TRY(PatternTree tree, choice(depth + 1));
  if (!take(')')) return bad("a '(' has no ')'");
  return tree;
}

Result<PatternTree> Parser::escape() {
  if (!more()) return bad("a backslash ends it");
  const uint32_t c = text_[at_];
  const uint32_t lower = c | 0x20;
  if (lower == 'd' || lower == 'w' || lower == 's') {
    ++at_;
    const ClassEscape set = class_escape(lower);
    if (is_wide_) return of_chars(c == lower ? set.wide : set.narrow.complement());
    return of_chars(c == lower ? set.narrow : set.wide.complement());
  }
  if (is_wide_ && (c == 'b' || c == 'B')) {  // there may be one anywhere
    ++at_;
    return PatternTree();
  }
  if (c == 'b' || c == 'B' || c == 'A' || c == 'Z' || c == 'z') {
    return bad("boundaries other than '^' and '$' are not supported");
  }
  if ((c >= '1' && c <= '9') || c == 'k') return bad("back-references are not supported");
  RUDDER_TRY(const uint32_t character, escaped_character(false));
  return of_chars({{character, character}});
}

Result<uint32_t> Parser::escaped_character(bool in_class) {
  if (!more()) return bad("a backslash ends it");
  const uint32_t c = text_[at_++];
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
    case '0':
      if (more() && text_[at_] >= '0' && text_[at_] <= '9') break;
      return 0;
    case 'b':
      if (!in_class) break;
      return '\b';
    case 'x':
      return hex(2);
    case 'u': {
      RUDDER_TRY(const uint32_t unit, hex(4));
      if (unit < 0xD800 || unit > 0xDFFF) return unit;
      if (unit > 0xDBFF || !take('\\') || !take('u')) return bad("half a pair of surrogates");
      RUDDER_TRY(const uint32_t low, hex(4));
      if (low < 0xDC00 || low > 0xDFFF) return bad("half a pair of surrogates");
      return 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
    }
    default:
      break;
  }
  const bool is_name = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  if (!is_name && c < 0x80) return c;
  --at_;
  return bad("the escape is not supported");
}

Result<uint32_t> Parser::hex(int digits) {
  uint32_t value = 0;
  for (int i = 0; i < digits; ++i) {
    const uint32_t c = more() ? text_[at_] : 0;
    const uint32_t lower = c | 0x20;
    const bool decimal = c >= '0' && c <= '9';
    if (!decimal && (lower < 'a' || lower > 'f')) return bad("a hexadecimal digit is missing");
    value = value * 16 + (decimal ? c - '0' : lower - 'a' + 10);
    ++at_;
  }
  return value;
}

Result<Parser::Member> Parser::class_member() {
  Member member;
  if (!take('\\')) {
    member.character = text_[at_++];
    return member;
  }
  const uint32_t c = more() ? text_[at_] : 0;
  const uint32_t lower = c | 0x20;
  if (lower == 'd' || lower == 'w' || lower == 's') {
    ++at_;
    member.set = class_escape(lower);
    member.negated = c != lower;
    return member;
  }
  RUDDER_TRY(member.character, escaped_character(true));
  return member;
}

Result<CharSet> Parser::char_class() {
  ++at_;
  const bool negated = take('^');
  if (next_is(']')) return bad("a class that is empty, or whose ']' is not written '\\]'");
  std::vector<CharRange> narrow_ranges;
  std::vector<CharRange> wide_ranges;
  while (more() && !next_is(']')) {
    RUDDER_TRY(const Member from, class_member());
    const bool range = next_is('-') && at_ + 1 < text_.size() && !next_is(']', 1);
    if (from.set) {
      if (range) return bad("a range in a class begins with a set");
      append_ranges(narrow_ranges, from.negated ? from.set->wide.complement() : from.set->narrow);
      append_ranges(wide_ranges, from.negated ? from.set->narrow.complement() : from.set->wide);
      continue;
    }
    Member to = from;
    if (range) {
      ++at_;
      RUDDER_TRY(to, class_member());
      if (to.set) return bad("a range in a class ends with a set");
      if (to.character < from.character) return bad("a range in a class is the wrong way round");
    }
    narrow_ranges.push_back({from.character, to.character});
    wide_ranges.push_back({from.character, to.character});
  }
  if (!take(']')) return bad("a '[' has no ']'");
  const CharSet narrow = CharSet::of(std::move(narrow_ranges));
  const CharSet wide = CharSet::of(std::move(wide_ranges));
  const CharSet all = CharSet::all();
  if (is_wide_) return negated ? narrow.complement() : wide.without(all.complement());
  return negated ? wide.complement() : narrow.without(all.complement());
}

std::optional<int32_t> Parser::integer() {
  const size_t start = at_;
  int64_t value = 0;
  while (more() && text_[at_] >= '0' && text_[at_] <= '9') {
    value = std::min<int64_t>(value * 10 + (text_[at_] - '0'), kMaxRepeat + 1);
    ++at_;
  }
  if (at_ == start) return std::nullopt;
  return static_cast<int32_t>(value);
}

Result<PatternTree> Parser::repeated(PatternTree part) {
  int32_t min = 0;
  int32_t max = RuleSet::kUnbounded;
  if (take('*')) {
  } else if (take('+')) {
    min = 1;
  } else if (take('?')) {
    max = 1;
  } else if (next_is('{')) {
    ++at_;
    const std::optional<int32_t> first = integer();
    std::optional<int32_t> last = first;
    bool comma = false;
    if (take(',')) {
      comma = true;
      last = integer();
    }
    if (!take('}') || (!first && !last)) {
      return bad("a '{' that is no repetition is written '\\{'");
    }
    // Python counts from 0, in ECMA-262 these are characters.
    if (!first) return bad(fmt::format("'{{,{}}}' is written '{{0,{}}}'", *last, *last));
    min = *first;
    max = last.value_or(comma ? RuleSet::kUnbounded : min);
    if (min > kMaxRepeat || max > kMaxRepeat) {
      return bad(fmt::format("more than {} repetitions", kMaxRepeat));
    }
    if (max != RuleSet::kUnbounded && max < min) return bad("a repetition is the wrong way round");
  } else {
    return part;
  }
  if (part.kind == Kind::kStart || part.kind == Kind::kEnd) return bad("a boundary is repeated");
  if (take('?')) {
    // Lazy: the same texts.
  } else if (next_is('+')) {
    return bad("possessive repetitions are not supported");
  }
  if (next_is('*') || next_is('{') || next_is('?')) return bad("a repetition is repeated");
  PatternTree tree;
  tree.kind = Kind::kRepeat;
  tree.min = min;
  tree.max = max;
  tree.parts.push_back(std::move(part));
  return tree;
}

}  // namespace

PatternTree of_chars(CharSet set) {
  PatternTree tree;
  tree.kind = Kind::kChars;
  tree.set = std::move(set);
  return tree;
}

Result<PatternTree> parse_pattern(std::string_view pattern, PatternReading reading) {
  if (find_invalid_utf8(pattern)) return fail(ErrorCode::kInvalidArgument, "is not UTF-8");
  std::vector<uint32_t> text;
  for (size_t pos = 0; pos < pattern.size();) text.push_back(next_char(pattern, pos));
  if (text.size() > kMaxPattern) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("has more than {} characters", kMaxPattern));
  }
  return Parser(std::move(text), reading).parse();
}

}  // namespace rudder::constraint
