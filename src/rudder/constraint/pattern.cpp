#include "rudder/constraint/pattern.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "rudder/constraint/json_text.h"
#include "rudder/constraint/pattern_parser.h"

namespace rudder::constraint {
namespace {

using Kind = PatternTree::Kind;
using Node = RuleSet::Node;

constexpr int32_t kUnbounded = RuleSet::kUnbounded;
// Places that a pattern has when its repetitions are written out: what a compile takes time for.
constexpr int64_t kMaxPlaces = 20'000;

int64_t places(const PatternTree& tree) {
  int64_t sum = tree.kind == Kind::kChars ? 1 : 0;
  for (const PatternTree& part : tree.parts) sum += places(part);
  if (tree.kind == Kind::kRepeat) {
    sum *= std::max<int64_t>({1, tree.min, tree.max});
  }
  return std::min(sum, kMaxPlaces + 1);
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

class Builder {
 public:
  Builder(RuleSet& rules, PatternUse use) : rules_(rules), use_(use) {}

  Node chars(const CharSet& set) {
    return use_ == PatternUse::kJsonString ? json_char(rules_, set) : rules_.chars(set);
  }

  Node build(const PatternTree& tree) {
    switch (tree.kind) {
      case Kind::kChars:
        return chars(tree.set);
      case Kind::kChoice: {
        std::vector<Node> parts;
        for (const PatternTree& part : tree.parts) parts.push_back(build(part));
        return rules_.choice(parts);
      }
      case Kind::kRepeat:
        return rules_.repeat(build(tree.parts[0]), tree.min, tree.max);
      default: {
        std::vector<Node> parts;
        for (const PatternTree& part : tree.parts) parts.push_back(build(part));
        return rules_.sequence(parts);
      }
    }
  }

  Result<Node> build(const Alternative& alternative, const PatternBounds& bounds);

 private:
  RuleSet& rules_;
  const PatternUse use_;
};

Result<Node> Builder::build(const Alternative& alternative, const PatternBounds& bounds) {
  static const PatternTree kAnything = [] {
    PatternTree any;
    any.kind = Kind::kChars;
    any.set = CharSet::all();
    PatternTree tree;
    tree.kind = Kind::kRepeat;
    tree.max = kUnbounded;
    tree.parts.push_back(std::move(any));
    return tree;
  }();
  std::vector<const PatternTree*> parts = alternative.parts;
  if (use_ == PatternUse::kJsonString) {
    if (!alternative.from_start) parts.insert(parts.begin(), &kAnything);
    if (!alternative.to_end) parts.push_back(&kAnything);
  }
  Length whole;
  for (const PatternTree* part : parts) whole = plus(whole, length_of(*part));
  const bool max_holds = bounds.max_length == kUnbounded ||
                         (whole.max != kUnbounded && whole.max <= bounds.max_length);
  std::vector<Node> nodes;
  if (whole.min >= bounds.min_length && max_holds) {
    for (const PatternTree* part : parts) nodes.push_back(build(*part));
    return rules_.sequence(nodes);
  }
  if (bounds.max_length != kUnbounded && whole.min > bounds.max_length) return rules_.nothing();
  if (whole.max != kUnbounded && whole.max < bounds.min_length) return rules_.nothing();
  // Lengths can be held where one part alone varies, and in steps of one.
  const PatternTree* varies = nullptr;
  int64_t fixed = 0;
  for (const PatternTree* part : parts) {
    const Length length = length_of(*part);
    if (length.min == length.max) {
      fixed += length.min;
    } else if (varies == nullptr && part->kind == Kind::kRepeat &&
               part->parts[0].kind == Kind::kChars) {
      varies = part;
    } else {
      return bad("cannot be held to minLength and maxLength: say the lengths in the pattern");
    }
  }
  for (const PatternTree* part : parts) {
    if (part != varies) {
      nodes.push_back(build(*part));
      continue;
    }
    const int64_t min = std::max<int64_t>(part->min, bounds.min_length - fixed);
    int64_t max = part->max;
    if (bounds.max_length != kUnbounded) {
      const int64_t most = bounds.max_length - fixed;
      max = max == kUnbounded ? most : std::min(max, most);
    }
    if (max != kUnbounded && max < min) return rules_.nothing();
    nodes.push_back(
        rules_.repeat(build(part->parts[0]), static_cast<int32_t>(min), static_cast<int32_t>(max)));
  }
  return rules_.sequence(nodes);
}

}  // namespace

Result<Node> build_pattern(RuleSet& rules, std::string_view pattern, PatternUse use,
                           const PatternBounds& bounds) {
  RUDDER_TRY(const PatternTree tree, parse_pattern(pattern));
  if (places(tree) > kMaxPlaces) return bad("is too complex: it repeats too much");
  std::vector<Alternative> alternatives;
  RUDDER_TRY_VOID(collect(tree, false, false, alternatives));
  Builder builder(rules, use);
  std::vector<Node> nodes;
  for (const Alternative& alternative : alternatives) {
    RUDDER_TRY(const Node node, builder.build(alternative, bounds));
    nodes.push_back(node);
  }
  return rules.choice(nodes);
}

}  // namespace rudder::constraint
