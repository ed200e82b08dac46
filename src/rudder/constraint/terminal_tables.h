// TerminalTables: what each token of a vocabulary is to a terminal, worked out beforehand: how many
// characters it takes, and what it leaves behind the closing quote. The tokens that fit into the
// room that is left are then a mask that is there already, whatever the bound. Made when a grammar
// is compiled, immutable, shared by all grammars with such a terminal; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "rudder/constraint/terminal.h"
#include "rudder/constraint/terminal_dfa.h"
#include "rudder/constraint/token_order.h"

namespace rudder::constraint {

class TerminalTables {
 public:
  using State = TerminalDfa::State;

  static constexpr int32_t kNoLimit = INT32_MAX;

  // A token that closes the string.
  struct Closing {
    int32_t chars = 0;  // before the quote
    int32_t after = 0;  // what stands behind it: a place in TokenOrder::after_quotes()
    int32_t token = 0;
  };

  // `words`: of a mask.
  TerminalTables(const Terminal& terminal, const TokenOrder& order, size_t words);

  const TerminalDfa& dfa() const { return dfa_; }
  // Sets the bits of the tokens that stay within the terminal and take at most `room` characters,
  // a last one that is begun included.
  void allow_inside(State state, int32_t room, std::span<uint32_t> mask) const;
  // By `chars`.
  const std::vector<Closing>& closing(State state) const {
    return states_[static_cast<size_t>(state)].closing;
  }
  size_t bytes() const;

 private:
  struct Inside {
    int32_t chars = 0;
    int32_t token = 0;
  };
  struct StateTables {
    std::vector<std::vector<uint32_t>> masks;  // by room; empty where tokens are few
    std::vector<uint32_t> all;                 // there if masks are
    int32_t most = 0;                          // characters of any token
    std::vector<Inside> listed;                // by chars: those beyond the masks, or all
    std::vector<Closing> closing;
  };

  StateTables make(State state, const TokenOrder& order, size_t words) const;

  const TerminalDfa dfa_;
  std::vector<StateTables> states_;
};

// Values that a terminal has not, as a tree of bytes in their one spelling.
class ExcludedValues {
 public:
  static constexpr int32_t kOff = -1;  // no longer the beginning of one

  explicit ExcludedValues(const std::vector<std::string>& values);

  int32_t start() const { return nodes_.size() == 1 ? kOff : 0; }
  int32_t next(int32_t node, uint8_t byte) const {
    if (node == kOff) return kOff;
    const auto& next = nodes_[static_cast<size_t>(node)].next;
    const auto found = next.find(byte);
    return found == next.end() ? kOff : found->second;
  }
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

// The set, form and spelling of terminals to their tables, as long as a grammar has them. Not safe
// from several threads at once.
class TerminalTableCache {
 public:
  std::shared_ptr<const TerminalTables> get(const Terminal& terminal, const TokenOrder& order,
                                            size_t words);

 private:
  std::unordered_map<std::string, std::weak_ptr<const TerminalTables>> known_;
};

}  // namespace rudder::constraint
