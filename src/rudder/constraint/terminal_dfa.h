// TerminalDfa: the automaton of a terminal over bytes, without the count of characters: UTF-8, for
// JSON strings the quotes and escapes, and the pattern. Made when a grammar is compiled; immutable,
// any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/constraint/fuel.h"
#include "rudder/constraint/pattern_dfa.h"
#include "rudder/constraint/terminal.h"

namespace rudder::constraint {

class TerminalDfa {
 public:
  using State = int32_t;

  static constexpr State kDead = ByteAutomaton::kDead;
  static constexpr State kOpening = ByteAutomaton::kOpening;
  static constexpr State kBody = ByteAutomaton::kBody;
  static constexpr State kClosed = ByteAutomaton::kClosed;

  // Of the terminal's form alone: the counts (of one of a set) and excluded values are not its own.
  // kInvalidArgument when the pattern is none, or too large for this.
  static Result<TerminalDfa> make(Fuel& fuel, const Terminal& terminal);

  State start() const { return start_; }
  State next(State from, uint8_t byte) const {
    return dfa_->next[static_cast<size_t>(from) * static_cast<size_t>(dfa_->num_classes) +
                      dfa_->classes[byte]];
  }
  // Bytes of one class lead from any state to the same one.
  uint8_t class_of(uint8_t byte) const { return dfa_->classes[byte]; }
  // Whether a character is complete on arriving at `to`.
  bool completes(State from, State to) const {
    return from != kOpening && dfa_->boundary[static_cast<size_t>(to)];
  }
  // Not inside of a character.
  bool is_between(State state) const { return dfa_->boundary[static_cast<size_t>(state)]; }
  // Not quoted: the terminal may end here.
  bool may_end(State state) const {
    return start_ == kBody && dfa_->accepting[static_cast<size_t>(state)];
  }
  // Characters that are missing at least until it may.
  int32_t missing(State state) const { return dfa_->missing[static_cast<size_t>(state)]; }
  // For each state a number, the same for states that `steps` bytes cannot tell apart but by the
  // count of characters.
  std::vector<int32_t> kinds(size_t steps) const;
  const ByteAutomaton& automaton() const { return *dfa_; }
  size_t size() const { return dfa_->boundary.size(); }
  size_t bytes() const { return dfa_->next.size() * sizeof(State); }

 private:
  TerminalDfa(State start, std::shared_ptr<const ByteAutomaton> dfa)
      : start_(start), dfa_(std::move(dfa)) {}

  State start_;
  std::shared_ptr<const ByteAutomaton> dfa_;
};

}  // namespace rudder::constraint
