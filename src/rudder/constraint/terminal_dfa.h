// TerminalDfa: a terminal's characters byte by byte, without their number: UTF-8, and for JSON
// strings the quotes and the escapes. Made when a grammar is compiled, immutable, any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "rudder/constraint/terminal.h"

namespace rudder::constraint {

class TerminalDfa {
 public:
  using State = int16_t;

  static constexpr State kDead = -1;
  static constexpr State kOpening = 0;  // before the first quote; where quoted ones start
  static constexpr State kBody = 1;     // between characters
  static constexpr State kClosed = 2;   // behind the second quote

  // Of the terminal's set, form and spelling; counts and excluded values are not its own.
  explicit TerminalDfa(const Terminal& terminal);

  State start() const { return start_; }
  State next(State from, uint8_t byte) const { return states_[static_cast<size_t>(from)][byte]; }
  // Whether a character is complete on arriving at `to`.
  static bool completes(State from, State to) { return to == kBody && from != kOpening; }
  size_t size() const { return states_.size(); }

 private:
  using Row = std::array<State, 256>;
  using Ranges = std::vector<CharRange>;

  State add_state();
  // Of what is left of a character: `bytes` more, whose bits are one of `values`.
  State continuation(int bytes, const Ranges& values);
  void add_plain(const CharSet& set);
  void add_escapes_needed(const CharSet& set);
  void add_escapes_anywhere();
  // From `from` on by any of the characters.
  void link(State from, std::string_view characters, State to);

  State start_ = kOpening;
  std::vector<Row> states_;
  std::map<std::pair<int, std::vector<uint32_t>>, State> continuations_;
};

}  // namespace rudder::constraint
