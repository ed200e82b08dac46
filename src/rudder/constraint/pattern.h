// Regular expressions as grammar nodes: the subset of ECMA-262 and Python syntax that is a regular
// language and means the same in both. Constructs outside it (look-around, back-references, word
// boundaries, flags, Unicode properties) are an error that names them. \d, \w and \s stand for
// ASCII characters; \D and \W stay within ASCII, since dialects differ on the rest.
#pragma once

#include <cstdint>
#include <string_view>

#include "rudder/base/result.h"
#include "rudder/constraint/pattern_parser.h"
#include "rudder/constraint/rule_set.h"

namespace rudder::constraint {

// Where the texts that match are to stand.
enum class PatternUse : uint8_t {
  kWholeText,   // the output itself; it matches from end to end
  kJsonString,  // a JSON string that has a match somewhere: `^` and `$` anchor
};

struct PatternBounds {
  int32_t min_length = 0;  // in characters
  int32_t max_length = RuleSet::kUnbounded;
};

// The whole texts as a tree: without anchors, with anything before and behind what is not anchored,
// and held to `bounds`. kInvalidArgument: not a regular expression, outside the subset, too large,
// or its lengths cannot be held to the bounds (which takes an alternative of one repeated part).
Result<PatternTree> whole_pattern(std::string_view pattern, PatternUse use,
                                  const PatternBounds& bounds,
                                  PatternReading reading = PatternReading::kNarrow);

// The same as a node, quotes included; a terminal unless its automaton would be too large.
Result<RuleSet::Node> build_pattern(RuleSet& rules, std::string_view pattern, PatternUse use,
                                    const PatternBounds& bounds = {});

}  // namespace rudder::constraint
