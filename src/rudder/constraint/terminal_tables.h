// TerminalTables: the effect of each token of a vocabulary on a terminal, computed beforehand: how
// many characters it takes, and which bytes it has behind the closing quote. So the tokens that fit
// into the remaining length are a precomputed mask, for any bound. Made when a grammar is compiled;
// immutable, shared by all grammars with such a terminal; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "rudder/constraint/fuel.h"
#include "rudder/constraint/terminal.h"
#include "rudder/constraint/terminal_dfa.h"
#include "rudder/constraint/token_order.h"
#include "rudder/constraint/utf8_state.h"

namespace rudder::constraint {

class TerminalTables {
 public:
  using State = TerminalDfa::State;

  static constexpr int32_t kNoLimit = INT32_MAX;

  // A token that closes the string.
  struct Closing {
    int32_t chars = 0;  // before the quote
    int32_t after = 0;  // what stands behind it: an index in TokenOrder::after_quotes()
    int32_t token = 0;
  };

  // `counted`: room will be asked for; `words`: of a mask. What is worked out beforehand burns
  // fuel, a small part of what is left; more is left for later where that is little.
  TerminalTables(Fuel& fuel, TerminalDfa dfa, bool counted, std::shared_ptr<const TokenOrder> order,
                 size_t words);

  const TerminalDfa& dfa() const { return dfa_; }

  // Of one state, some or all.
  class Tokens {
   public:
    // Sets the bits of the tokens that stay within the terminal and leave it at most `room`
    // characters to take, counted from before the token, until it may end.
    void allow_inside(int32_t room, std::span<uint32_t> mask) const;
    const std::vector<Closing>& closing() const { return closing_; }  // by `chars`
    size_t bytes() const;

   private:
    friend class TerminalTables;
    struct Inside {
      int32_t chars = 0;
      int32_t token = 0;
    };
    void sort_in(std::vector<Inside> inside, bool counted, size_t words);

    std::vector<std::vector<uint32_t>> masks_;  // by room; empty where tokens are few
    std::vector<uint32_t> all_;                 // empty where tokens are few
    int32_t most_ = 0;                          // characters of any token
    std::vector<Inside> listed_;                // by chars: those beyond the masks, or all
    std::vector<Closing> closing_;
  };
  struct View {
    std::shared_ptr<const Tokens> near;
    std::shared_ptr<const Tokens> far;  // null: all are in `near`
  };
  // Where characters are not counted, states that short tokens cannot tell apart share those. Those
  // of the states near the start are worked out beforehand, the others when they are asked for
  // first: some microseconds, a millisecond where nearly all tokens stay within.
  // Adds the nodes of the vocabulary's tree that it looked at for it, some 10 ns each.
  View tokens(State state, uint64_t& looked_at) const;
  size_t bytes() const { return bytes_; }            // of all that may ever be kept, about
  size_t made_bytes() const { return made_bytes_; }  // of that, of what is made beforehand

 private:
  // Adds to `looked_at` the nodes of the trie that it looked at.
  std::shared_ptr<const Tokens> make(State state, const TokenTrie& trie, size_t& looked_at) const;
  uint64_t loops_of(State state) const;
  using Inside = std::vector<std::pair<Utf8State, State>>;
  bool characters_return(State back, State at, Utf8State utf8, Inside& seen) const;
  void add_closing(const TokenTrie& trie, size_t quote, int32_t chars, Tokens& tokens) const;

  const TerminalDfa dfa_;
  const bool counted_;
  const std::shared_ptr<const TokenOrder> order_;
  const size_t words_;
  std::vector<int32_t> kinds_;  // of states: indices in near_
  mutable std::mutex mutex_;    // of what changes after the start
  mutable std::vector<std::shared_ptr<const Tokens>> near_;
  mutable std::vector<std::shared_ptr<const Tokens>> far_;
  using Late = std::deque<std::shared_ptr<const Tokens>*>;  // the oldest first
  mutable Late late_near_;
  mutable Late late_far_;
  size_t bytes_ = 0;
  size_t made_bytes_ = 0;
};

// Values that a terminal has not, as a tree of bytes in their one spelling.
class ExcludedValues {
 public:
  static constexpr int32_t kOff = -1;  // no longer the beginning of one

  explicit ExcludedValues(const std::vector<std::string>& values);

  int32_t start() const { return nodes_.empty() ? kOff : 0; }
  int32_t next(int32_t node, uint8_t byte) const {
    if (node == kOff) return kOff;
    const auto& next = nodes_[static_cast<size_t>(node)].next;
    const auto found = next.find(byte);
    return found == next.end() ? kOff : found->second;
  }
  size_t bytes() const { return nodes_.size() * 2 * sizeof(Node); }  // about
  bool is_value(int32_t node) const {
    return node != kOff && nodes_[static_cast<size_t>(node)].is_value;
  }

 private:
  struct Node {
    std::unordered_map<uint8_t, int32_t> next;
    bool is_value = false;
  };
  std::vector<Node> nodes_;
};

// The forms of terminals to their tables, as long as a grammar has them. Not safe
// from several threads at once.
class TerminalTableCache {
 public:
  // kInvalidArgument: TerminalDfa::make() finds fault with it.
  Result<std::shared_ptr<const TerminalTables>> get(Fuel& fuel, const Terminal& terminal,
                                                    const std::shared_ptr<const TokenOrder>& order,
                                                    size_t words);

 private:
  std::unordered_map<std::string, std::weak_ptr<const TerminalTables>> known_;
};

}  // namespace rudder::constraint
