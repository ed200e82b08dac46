#include "rudder/constraint/pattern.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rudder/constraint/json_text.h"
#include "rudder/constraint/pattern_dfa.h"
#include "rudder/constraint/terminal_dfa.h"

namespace rudder::constraint {
namespace {

using Kind = PatternTree::Kind;
using Node = RuleSet::Node;

constexpr int32_t kUnbounded = RuleSet::kUnbounded;
// Positions that a pattern has when its repetitions are written out: what a compile takes time for.
constexpr int64_t kMaxPositions = 20'000;

int64_t positions(const PatternTree& tree) {
  int64_t sum = tree.kind == Kind::kChars ? 1 : 0;
  for (const PatternTree& part : tree.parts) sum += positions(part);
  if (tree.kind == Kind::kRepeat) {
    sum *= std::max<int64_t>({1, tree.min, tree.max});
  }
  return std::min(sum, kMaxPositions + 1);
}

// An alternative of the whole pattern: parts in a row, and whether its ends are those of the text.
struct Alternative {
  std::vector<const PatternTree*> parts;
  bool from_start = false;
  bool to_end = false;
};

tl::unexpected<Error> bad(std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message));
}

bool has_anchor(const PatternTree& tree) {
  return tree.kind == Kind::kStart || tree.kind == Kind::kEnd ||
         std::any_of(tree.parts.begin(), tree.parts.end(), has_anchor);
}

Result<void> collect(const PatternTree& tree, bool from_start, bool to_end,
                     std::vector<Alternative>& out) {
  if (tree.kind == Kind::kChoice) {
    for (const PatternTree& part : tree.parts) {
      RUDDER_TRY_VOID(collect(part, from_start, to_end, out));
    }
    return {};
  }
  Alternative one = {.parts = {}, .from_start = from_start, .to_end = to_end};
  if (tree.kind == Kind::kSequence) {
    for (const PatternTree& part : tree.parts) one.parts.push_back(&part);
  } else {
    one.parts.push_back(&tree);
  }
  while (!one.parts.empty() && one.parts.front()->kind == Kind::kStart) {
    one.parts.erase(one.parts.begin());
    one.from_start = true;
  }
  while (!one.parts.empty() && one.parts.back()->kind == Kind::kEnd) {
    one.parts.pop_back();
    one.to_end = true;
  }
  if (one.parts.size() == 1 &&
      (one.parts[0]->kind == Kind::kChoice || one.parts[0]->kind == Kind::kSequence)) {
    return collect(*one.parts[0], one.from_start, one.to_end, out);
  }
  for (const PatternTree* part : one.parts) {
    if (has_anchor(*part)) return bad("has a '^' or '$' in the middle, which is not supported");
  }
  out.push_back(std::move(one));
  return {};
}

struct Length {
  int64_t min = 0;
  int64_t max = 0;  // kUnbounded
};

Length plus(Length a, Length b) {
  const bool open = a.max == kUnbounded || b.max == kUnbounded;
  return {.min = a.min + b.min, .max = open ? kUnbounded : a.max + b.max};
}

Length length_of(const PatternTree& tree) {
  Length sum;
  switch (tree.kind) {
    case Kind::kChars:
      return {.min = 1, .max = 1};
    case Kind::kChoice:
      sum = length_of(tree.parts[0]);
      for (const PatternTree& part : tree.parts) {
        const Length one = length_of(part);
        sum.min = std::min(sum.min, one.min);
        const bool open = sum.max == kUnbounded || one.max == kUnbounded;
        sum.max = open ? kUnbounded : std::max(sum.max, one.max);
      }
      return sum;
    case Kind::kRepeat: {
      const Length one = length_of(tree.parts[0]);
      const bool open = one.max == kUnbounded || (tree.max == kUnbounded && one.max > 0);
      return {.min = one.min * tree.min, .max = open ? kUnbounded : one.max * tree.max};
    }
    default:
      for (const PatternTree& part : tree.parts) sum = plus(sum, length_of(part));
      return sum;
  }
}

PatternTree row_of(std::vector<PatternTree> parts) {
  PatternTree tree;
  tree.parts = std::move(parts);
  return tree;
}

PatternTree repeated(PatternTree part, int64_t min, int64_t max) {
  PatternTree tree;
  tree.kind = Kind::kRepeat;
  tree.min = static_cast<int32_t>(min);
  tree.max = static_cast<int32_t>(max);
  tree.parts.push_back(std::move(part));
  return tree;
}

// No text at all.
PatternTree nothing() {
  return of_chars({});
}

Result<PatternTree> whole(const Alternative& alternative, PatternUse use,
                          const PatternBounds& bounds, PatternReading reading) {
  std::vector<PatternTree> parts;
  const PatternTree anything = repeated(of_chars(CharSet::all()), 0, kUnbounded);
  if (use == PatternUse::kJsonString && !alternative.from_start) parts.push_back(anything);
  for (const PatternTree* part : alternative.parts) parts.push_back(*part);
  if (use == PatternUse::kJsonString && !alternative.to_end) parts.push_back(anything);
  if (alternative.to_end && reading == PatternReading::kWide) {
    parts.push_back(repeated(of_chars({{'\n', '\n'}}), 0, 1));  // as Python's `$` has it
  }
  Length length;
  for (const PatternTree& part : parts) length = plus(length, length_of(part));
  const bool max_holds = bounds.max_length == kUnbounded ||
                         (length.max != kUnbounded && length.max <= bounds.max_length);
  if (length.min >= bounds.min_length && max_holds) return row_of(std::move(parts));
  if (bounds.max_length != kUnbounded && length.min > bounds.max_length) return nothing();
  if (length.max != kUnbounded && length.max < bounds.min_length) return nothing();
  // Lengths can be held where one part alone varies, and in steps of one.
  PatternTree* varies = nullptr;
  int64_t fixed = 0;
  for (PatternTree& part : parts) {
    const Length one = length_of(part);
    if (one.min == one.max) {
      fixed += one.min;
    } else if (varies == nullptr && part.kind == Kind::kRepeat &&
               part.parts[0].kind == Kind::kChars) {
      varies = &part;
    } else {
      return bad("cannot be held to minLength and maxLength: say the lengths in the pattern");
    }
  }
  const int64_t min = std::max<int64_t>(varies->min, bounds.min_length - fixed);
  int64_t max = varies->max;
  if (bounds.max_length != kUnbounded) {
    const int64_t most = bounds.max_length - fixed;
    max = max == kUnbounded ? most : std::min(max, most);
  }
  if (max != kUnbounded && max < min) return nothing();
  varies->min = static_cast<int32_t>(min);
  varies->max = static_cast<int32_t>(max);
  return row_of(std::move(parts));
}

class Builder {
 public:
  Builder(RuleSet& rules, PatternUse use) : rules_(rules), use_(use) {}

  Node build(const PatternTree& tree) {
    switch (tree.kind) {
      case Kind::kChars:
        return use_ == PatternUse::kJsonString ? json_char(rules_, tree.set)
                                               : rules_.chars(tree.set);
      case Kind::kChoice: {
        std::vector<Node> parts;
        parts.reserve(tree.parts.size());
        for (const PatternTree& part : tree.parts) parts.push_back(build(part));
        return rules_.choice(parts);
      }
      case Kind::kRepeat:
        return rules_.repeat(build(tree.parts[0]), tree.min, tree.max);
      default: {
        std::vector<Node> parts;
        parts.reserve(tree.parts.size());
        for (const PatternTree& part : tree.parts) parts.push_back(build(part));
        return rules_.sequence(parts);
      }
    }
  }

 private:
  RuleSet& rules_;
  const PatternUse use_;
};

// The characters that `tree` repeats, if it does nothing else; null otherwise.
const PatternTree* repeated_chars(const PatternTree& tree) {
  const PatternTree* at = &tree;
  while ((at->kind == Kind::kSequence || at->kind == Kind::kChoice) && at->parts.size() == 1) {
    at = &at->parts[0];
  }
  const bool chars = at->kind == Kind::kRepeat && at->parts[0].kind == Kind::kChars;
  return chars ? at : nullptr;
}

}  // namespace

Result<PatternTree> whole_pattern(std::string_view pattern, PatternUse use,
                                  const PatternBounds& bounds, PatternReading reading) {
  RUDDER_TRY(const PatternTree tree, parse_pattern(pattern, reading));
  if (positions(tree) > kMaxPositions) return bad("is too complex: it repeats too much");
  std::vector<Alternative> alternatives;
  RUDDER_TRY_VOID(collect(tree, false, false, alternatives));
  PatternTree all;
  all.kind = Kind::kChoice;
  for (const Alternative& alternative : alternatives) {
    RUDDER_TRY(PatternTree one, whole(alternative, use, bounds, reading));
    all.parts.push_back(std::move(one));
  }
  return all;
}

Result<Node> build_pattern(RuleSet& rules, std::string_view pattern, PatternUse use,
                           const PatternBounds& bounds) {
  RUDDER_TRY(const PatternTree tree, whole_pattern(pattern, use, bounds));
  const bool quoted = use == PatternUse::kJsonString;
  // Unquoted terminals have a character at least.
  const auto terminal = [&](Terminal one, bool may_be_empty) {
    one.quoted = quoted;
    const Node node = rules.terminal(one);
    return may_be_empty && !quoted ? rules.optional(node) : node;
  };
  if (const PatternTree* chars = repeated_chars(tree); chars != nullptr && chars->max != 0) {
    Terminal one;
    one.set = chars->parts[0].set;
    one.min = quoted ? chars->min : std::max(1, chars->min);
    one.max = chars->max;
    return terminal(std::move(one), chars->min == 0);
  }
  if (std::optional<ByteAutomaton> automaton = pattern_automaton(rules.fuel(), tree, quoted)) {
    if (automaton->missing[TerminalDfa::kBody] == ByteAutomaton::kNever) return rules.nothing();
    Terminal one;
    one.pattern = pattern.empty() ? "(?:)" : pattern;
    one.min = bounds.min_length;
    one.max = bounds.max_length;
    const bool may_be_empty = automaton->accepting[TerminalDfa::kBody];
    one.automaton = std::make_shared<ByteAutomaton>(std::move(*automaton));
    return terminal(std::move(one), may_be_empty);
  }
  if (rules.fuel().out()) return tl::unexpected(rules.fuel().error());
  const Node inner = Builder(rules, use).build(tree);
  const Node quote = rules.literal("\"");
  return quoted ? rules.sequence({quote, inner, quote}) : inner;
}

}  // namespace rudder::constraint
