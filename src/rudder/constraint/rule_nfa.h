// RuleNfa: the body of one rule as a finite automaton over bytes and symbols (rules, terminals,
// sets of tokens). compile_rules() builds it with free edges, then finishes it: that removes the
// free edges and, where it does not make the automaton much larger, also makes it deterministic.
// One thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "rudder/constraint/char_set.h"
#include "rudder/constraint/fuel.h"

namespace rudder::constraint {

struct ByteEdge {
  uint8_t first = 0;
  uint8_t last = 0;
  int32_t target = 0;
};

struct SymbolEdge {
  int32_t symbol = 0;
  int32_t target = 0;
};

// State 0 is where it starts.
struct RuleAutomaton {
  struct State {
    std::vector<ByteEdge> bytes;  // by their first byte
    std::vector<SymbolEdge> symbols;
    bool final = false;
    bool overlapping = false;  // more than one edge for some byte
  };
  std::vector<State> states;
};

class RuleNfa {
 public:
  explicit RuleNfa(Fuel& fuel) : fuel_(fuel), held_(fuel) { add(); }

  int32_t add();  // a state; 0 is there, and where it starts
  void link_free(int32_t from, int32_t to);
  void link_bytes(int32_t from, uint8_t first, uint8_t last, int32_t to);
  void link_symbol(int32_t from, int32_t symbol, int32_t to);
  // The states behind what is taken from `from` on.
  int32_t take_text(int32_t from, std::string_view bytes);
  int32_t take_char(int32_t from, const CharSet& set);
  size_t size() const { return states_.size(); }

  // Ends at `end`. With whatever is there when the fuel is out.
  RuleAutomaton finish(int32_t end) const;

 private:
  struct Edge {
    enum class Kind : uint8_t { kFree, kBytes, kSymbol };
    Kind kind = Kind::kFree;
    uint8_t first = 0;
    uint8_t last = 0;
    int32_t symbol = 0;
    int32_t to = 0;
    int32_t next = -1;  // of the same state
  };
  using Set = std::vector<int32_t>;
  class Determinizer;

  void link(int32_t from, Edge edge);
  // Adds the states that free edges lead to; keeps those with other edges, and `end`.
  void close(Set& set, int32_t end, std::vector<uint8_t>& seen) const;
  RuleAutomaton without_free_edges(int32_t end) const;

  Fuel& fuel_;
  mutable Held held_;
  std::vector<int32_t> states_;  // their last edges
  std::vector<Edge> edges_;
};

}  // namespace rudder::constraint
