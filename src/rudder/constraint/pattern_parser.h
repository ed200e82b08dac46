// Parses regular expressions (pattern.h) into trees. A tree does not depend on JSON. Pure
// functions; any thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/constraint/char_set.h"

namespace rudder::constraint {

struct PatternTree {
  enum class Kind : uint8_t { kChars, kSequence, kChoice, kRepeat, kStart, kEnd };

  Kind kind = Kind::kSequence;
  CharSet set;                     // kChars
  std::vector<PatternTree> parts;  // kSequence, kChoice, kRepeat (one)
  int32_t min = 0;                 // kRepeat
  int32_t max = 0;                 // kRepeat; RuleSet::kUnbounded
};

PatternTree of_chars(CharSet set);  // one character of it

// Dialects differ on what some parts match (`\\w` beyond ASCII, `.` at line ends).
enum class PatternReading : uint8_t {
  kNarrow,  // the texts that match in every dialect
  kWide,    // those that match in any, and around any boundary: for texts that must not match
};

// The message names what is wrong and the byte it is at.
Result<PatternTree> parse_pattern(std::string_view pattern,
                                  PatternReading reading = PatternReading::kNarrow);

}  // namespace rudder::constraint
