// Grammar: rules as automata over bytes and symbols, in the form that the parser reads. A symbol is
// a rule or a terminal (terminal.h); an edge may also ask for one token of a set, by its id.
// compile_rules() makes it; it is immutable and shared by matchers on any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/constraint/rule_nfa.h"
#include "rudder/constraint/rule_set.h"

namespace rudder::constraint {

struct Grammar {
  // Symbols: rules are 0 to num_rules() - 1, terminals follow. Rule 0 is the whole output.
  static constexpr int32_t kUnbounded = RuleSet::kUnbounded;

  struct State {
    int32_t rule = 0;
    // Where its edges begin; they end where those of the next state begin.
    uint32_t bytes = 0;
    uint32_t symbols = 0;
    uint32_t tokens = 0;
    bool final = false;
    bool leaf = false;  // no edges
    bool overlapping = false;
  };
  struct Rule {
    int32_t start = 0;
    bool nullable = false;
    // A rule that counts: `part` from `min` to `max` times, in its one state. The part takes at
    // least a byte, or `min` is 0.
    int32_t part = -1;
    int32_t min = 0;
    int32_t max = 0;
  };
  struct TokenEdge {
    int32_t set = 0;
    int32_t target = 0;
  };

  std::span<const ByteEdge> bytes_of(int32_t state) const {
    return edges_of(byte_edges, state, &State::bytes);
  }
  std::span<const SymbolEdge> symbols_of(int32_t state) const {
    return edges_of(symbol_edges, state, &State::symbols);
  }
  std::span<const TokenEdge> tokens_of(int32_t state) const {
    return edges_of(token_edges, state, &State::tokens);
  }
  const State& state(int32_t index) const { return states[static_cast<size_t>(index)]; }
  const Rule& rule(int32_t symbol) const { return rules[static_cast<size_t>(symbol)]; }
  bool counts(int32_t state_index) const { return rule(state(state_index).rule).part >= 0; }
  int32_t num_rules() const { return static_cast<int32_t>(rules.size()); }
  bool is_terminal(int32_t symbol) const { return symbol >= num_rules(); }
  bool is_nullable(int32_t symbol) const { return !is_terminal(symbol) && rule(symbol).nullable; }
  size_t bytes() const;

  std::vector<State> states;  // and one more, where the edges end
  std::vector<ByteEdge> byte_edges;
  std::vector<SymbolEdge> symbol_edges;
  std::vector<TokenEdge> token_edges;
  std::vector<Rule> rules;
  std::vector<Terminal> terminals;
  std::vector<TokenSet> token_sets;

 private:
  template <typename Edge>
  std::span<const Edge> edges_of(const std::vector<Edge>& edges, int32_t index,
                                 uint32_t State::*begin) const {
    const auto at = static_cast<size_t>(index);
    const uint32_t from = states[at].*begin;
    return {edges.data() + from, states[at + 1].*begin - from};
  }
};

// The texts of `start`. kInvalidArgument when there are none, or the fuel is out.
Result<Grammar> compile_rules(RuleSet& rules, RuleSet::Node start);

}  // namespace rudder::constraint
