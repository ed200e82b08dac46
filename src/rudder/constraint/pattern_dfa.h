// Turns regular expressions into automata over bytes, for terminals. whole_pattern() must have put
// anchors and bounds into the tree before. Pure functions; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "rudder/constraint/fuel.h"
#include "rudder/constraint/pattern_parser.h"

namespace rudder::constraint {

struct ByteAutomaton {
  static constexpr int32_t kNever = INT32_MAX;
  static constexpr int32_t kDead = -1;
  static constexpr int32_t kOpening = 0;  // before the first quote; where quoted ones start
  static constexpr int32_t kBody = 1;     // before the first character
  static constexpr int32_t kClosed = 2;   // behind the second quote

  std::array<uint8_t, 256> classes = {};
  int32_t num_classes = 0;
  std::vector<int32_t> next;     // [state, class]
  std::vector<bool> boundary;    // [state]: between characters
  std::vector<bool> accepting;   // [state]: the text may end here
  std::vector<int32_t> missing;  // [state]: characters that it takes at least until it may; kNever
};

// Of the texts that match; `quoted`: as JSON strings in their one spelling. From every state there
// is a way to the end; kBody is not accepting and leads nowhere when there is no text. Nothing
// when it would have too many states, or the fuel is out.
std::optional<ByteAutomaton> pattern_automaton(Fuel& fuel, const PatternTree& tree, bool quoted);

// The last step of making one whose states and `accepting` are there: its quotes, what is missing
// from each state, and without ways that never come to an end. Holds what the automaton takes.
// False when the fuel is out.
bool finish_automaton(Fuel& fuel, ByteAutomaton& automaton, bool quoted);

}  // namespace rudder::constraint
