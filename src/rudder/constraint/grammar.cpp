#include "rudder/constraint/grammar.h"

#include "rudder/constraint/free_text.h"

#include <deque>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace rudder::constraint {
namespace {

using Node = RuleSet::Node;

// Repetitions are written out, up to so many rounds and positions; longer ones count.
constexpr int64_t kMaxWrittenRounds = 64;
constexpr int64_t kMaxWrittenOut = 512;
constexpr int kMaxNodeDepth = 2000;  // of nodes in nodes, rules apart

// While rules are compiled, symbols that are not rules are below zero: terminals and sets of tokens
// in turn.
int32_t terminal_symbol(size_t index) {
  return -2 * static_cast<int32_t>(index) - 1;
}
int32_t token_symbol(size_t index) {
  return -2 * static_cast<int32_t>(index) - 2;
}

class RuleCompiler {
 public:
  RuleCompiler(RuleSet& rules, std::vector<bool> productive)
      : rules_(rules), fuel_(rules.fuel()), productive_(std::move(productive)) {}

  Result<Grammar> run(Node start) {
    pending_.push_back({.body = start});
    for (size_t i = 0; i < pending_.size(); ++i) {
      RUDDER_TRY_VOID(compile(i));
    }
    out_.states.push_back({.rule = -1,
                           .bytes = static_cast<uint32_t>(out_.byte_edges.size()),
                           .symbols = static_cast<uint32_t>(out_.symbol_edges.size()),
                           .tokens = static_cast<uint32_t>(out_.token_edges.size())});
    for (SymbolEdge& edge : out_.symbol_edges) {
      if (edge.symbol < 0) edge.symbol = out_.num_rules() + (-edge.symbol - 1) / 2;
    }
    find_nullable();
    if (!fuel_.burn(0)) return tl::unexpected(fuel_.error());
    return std::move(out_);
  }

 private:
  struct Pending {
    Node body = 0;
    bool counts = false;  // `body` is a repetition
  };

  Result<void> compile(size_t index);
  // A rule for the node, made once.
  int32_t symbol_of(Node node, bool counts);
  // The state behind what the node takes from `from` on.
  int32_t build(RuleNfa& nfa, Node node, int32_t from, int depth);
  int32_t build_repeat(RuleNfa& nfa, Node node, int32_t from, int depth);
  int32_t build_dispatch(RuleNfa& nfa, const Dispatch& dispatch, int32_t from, int depth);
  // Positions of the node when it is written out, up to kMaxWrittenOut + 1.
  int64_t positions(Node node, int depth) const;
  void add_states(int32_t rule, const RuleAutomaton& automaton);
  void find_nullable();
  bool is_productive(Node node) const { return productive_[static_cast<size_t>(node)]; }

  RuleSet& rules_;
  Fuel& fuel_;
  const std::vector<bool> productive_;
  std::vector<Pending> pending_;  // by symbol
  std::unordered_map<int64_t, int32_t> symbols_;
  std::unordered_map<std::string_view, size_t> terminals_;
  std::unordered_map<int32_t, size_t> token_sets_;
  bool too_deep_ = false;
  Grammar out_;
};

int32_t RuleCompiler::symbol_of(Node node, bool counts) {
  // References to one rule are one symbol.
  int64_t key = int64_t{node} * 4 + (counts ? 1 : 0);
  Node body = node;
  if (const RuleSet::Data& data = rules_.data(node); !counts && data.kind == RuleSet::Kind::kRule) {
    key = int64_t{data.index} * 4 + 2;
    body = rules_.body(data.index);
  }
  const auto next = static_cast<int32_t>(pending_.size());
  const auto [known, is_new] = symbols_.try_emplace(key, next);
  if (is_new) pending_.push_back({.body = body, .counts = counts});
  return known->second;
}

int64_t RuleCompiler::positions(Node node, int depth) const {
  const RuleSet::Data& data = rules_.data(node);
  fuel_.burn(1);
  if (depth > kMaxNodeDepth) return kMaxWrittenOut + 1;
  switch (data.kind) {
    case RuleSet::Kind::kLiteral:
      return std::min<int64_t>(std::ssize(data.text), kMaxWrittenOut + 1);
    case RuleSet::Kind::kSequence:
    case RuleSet::Kind::kChoice: {
      int64_t sum = 0;
      for (const Node part : data.parts) {
        sum += positions(part, depth + 1);
        if (sum > kMaxWrittenOut) return kMaxWrittenOut + 1;
      }
      return sum;
    }
    case RuleSet::Kind::kRepeat: {
      const int64_t rounds = std::max<int64_t>({1, data.min, data.max});
      if (rounds > kMaxWrittenOut) return kMaxWrittenOut + 1;
      return std::min(rounds * positions(data.parts[0], depth + 1), kMaxWrittenOut + 1);
    }
    default:
      return 1;
  }
}

int32_t RuleCompiler::build(RuleNfa& nfa, Node node, int32_t from, int depth) {
  too_deep_ = too_deep_ || depth > kMaxNodeDepth;
  if (too_deep_ || fuel_.out()) return from;
  const RuleSet::Data& data = rules_.data(node);
  switch (data.kind) {
    case RuleSet::Kind::kEmpty:
    case RuleSet::Kind::kNothing:
      return from;
    case RuleSet::Kind::kLiteral:
      return nfa.take_text(from, data.text);
    case RuleSet::Kind::kChars:
      return nfa.take_char(from, data.set);
    case RuleSet::Kind::kSequence:
      for (const Node part : data.parts) from = build(nfa, part, from, depth + 1);
      return from;
    case RuleSet::Kind::kChoice: {
      const int32_t end = nfa.add();
      for (const Node part : data.parts) {
        if (!is_productive(part)) continue;
        const int32_t begin = nfa.add();
        nfa.link_free(from, begin);
        nfa.link_free(build(nfa, part, begin, depth + 1), end);
      }
      return end;
    }
    case RuleSet::Kind::kRepeat:
      return build_repeat(nfa, node, from, depth);
    case RuleSet::Kind::kDispatch:
      return build_dispatch(nfa, rules_.dispatch_of(data.index), from, depth);
    case RuleSet::Kind::kRule:
    case RuleSet::Kind::kTerminal:
    case RuleSet::Kind::kTokens:
      break;
  }
  int32_t symbol = 0;
  if (data.kind == RuleSet::Kind::kRule) {
    symbol = symbol_of(node, false);
  } else if (data.kind == RuleSet::Kind::kTokens) {
    const auto [known, is_new] = token_sets_.try_emplace(data.index, out_.token_sets.size());
    if (is_new) out_.token_sets.push_back(rules_.tokens(data.index));
    symbol = token_symbol(known->second);
  } else {
    const auto [known, is_new] = terminals_.try_emplace(data.text, out_.terminals.size());
    if (is_new) out_.terminals.push_back(rules_.take_terminal(data.index));
    fuel_.burn(std::ssize(data.text) / 64);
    symbol = terminal_symbol(known->second);
  }
  const int32_t to = nfa.add();
  nfa.link_symbol(from, symbol, to);
  return to;
}

int32_t RuleCompiler::build_repeat(RuleNfa& nfa, Node node, int32_t from, int depth) {
  const RuleSet::Data& data = rules_.data(node);
  const Node part = data.parts[0];
  const int32_t end = nfa.add();
  if (!is_productive(part)) {  // none of it, then
    nfa.link_free(from, end);
    return end;
  }
  const int64_t rounds = std::max<int64_t>({1, data.min, data.max});
  if (rounds > 1 && (rounds > kMaxWrittenRounds || rounds * positions(part, 0) > kMaxWrittenOut)) {
    nfa.link_symbol(from, symbol_of(node, true), end);
    return end;
  }
  for (int32_t i = 0; i < data.min; ++i) from = build(nfa, part, from, depth + 1);
  if (data.max == RuleSet::kUnbounded) {
    const int32_t loop = nfa.add();
    nfa.link_free(from, loop);
    nfa.link_free(build(nfa, part, loop, depth + 1), loop);
    nfa.link_free(loop, end);
    return end;
  }
  for (int32_t i = data.min; i < data.max; ++i) {
    nfa.link_free(from, end);
    from = build(nfa, part, from, depth + 1);
  }
  nfa.link_free(from, end);
  return end;
}

int32_t RuleCompiler::build_dispatch(RuleNfa& nfa, const Dispatch& dispatch, int32_t from,
                                     int depth) {
  const int32_t end = nfa.add();
  const int32_t begin = nfa.add();
  nfa.link_free(from, begin);
  std::vector<std::string> texts = dispatch.excluded;
  for (const Dispatch::Case& one : dispatch.cases) texts.push_back(one.text);
  // The states behind the texts; there are none behind those that are excluded.
  std::vector<int32_t> behind(texts.size(), -1);
  for (size_t i = 0; i < dispatch.cases.size(); ++i) {
    if (!is_productive(dispatch.cases[i].node)) continue;
    int32_t& state = behind[dispatch.excluded.size() + i];
    state = nfa.add();
    const int32_t after = build(nfa, dispatch.cases[i].node, state, depth + 1);
    nfa.link_free(after, dispatch.loop ? begin : end);
  }
  take_free_text(nfa, fuel_, texts, behind, begin, end);
  return end;
}

Result<void> RuleCompiler::compile(size_t index) {
  const Pending pending = pending_[index];
  const auto symbol = static_cast<int32_t>(index);
  out_.rules.push_back({.start = static_cast<int32_t>(out_.states.size())});
  fuel_.burn(100);
  if (pending.counts) {
    const RuleSet::Data& data = rules_.data(pending.body);
    const int32_t part = symbol_of(data.parts[0], false);
    Grammar::Rule& rule = out_.rules.back();
    rule.part = part;
    rule.min = data.min;
    rule.max = data.max;
    RuleAutomaton one;
    one.states.emplace_back().final = true;  // from `min` rounds on: the parser asks
    add_states(symbol, one);
    out_.states.back().leaf = false;
  } else {
    RuleNfa nfa(fuel_);
    const int32_t end = build(nfa, pending.body, 0, 0);
    if (too_deep_) {
      return fail(ErrorCode::kInvalidArgument, "is too complex: it is nested too deeply");
    }
    add_states(symbol, nfa.finish(end));
  }
  if (fuel_.out()) return tl::unexpected(fuel_.error());
  return {};
}

void RuleCompiler::add_states(int32_t rule, const RuleAutomaton& automaton) {
  constexpr size_t kGrown = 2;  // a vector that grows may have as much again
  size_t bytes = automaton.states.size() * sizeof(Grammar::State);
  for (const RuleAutomaton::State& state : automaton.states) {
    bytes += state.bytes.size() * sizeof(ByteEdge) + state.symbols.size() * sizeof(SymbolEdge);
  }
  if (!fuel_.hold(static_cast<int64_t>(kGrown * bytes))) return;
  const auto first = static_cast<int32_t>(out_.states.size());
  for (const RuleAutomaton::State& state : automaton.states) {
    out_.states.push_back({.rule = rule,
                           .bytes = static_cast<uint32_t>(out_.byte_edges.size()),
                           .symbols = static_cast<uint32_t>(out_.symbol_edges.size()),
                           .tokens = static_cast<uint32_t>(out_.token_edges.size()),
                           .final = state.final,
                           .leaf = state.bytes.empty() && state.symbols.empty(),
                           .overlapping = state.overlapping});
    for (ByteEdge edge : state.bytes) {
      edge.target += first;
      out_.byte_edges.push_back(edge);
    }
    for (const SymbolEdge& edge : state.symbols) {
      if (edge.symbol < 0 && edge.symbol % 2 == 0) {
        out_.token_edges.push_back({.set = -edge.symbol / 2 - 1, .target = edge.target + first});
      } else {
        out_.symbol_edges.push_back({edge.symbol, edge.target + first});
      }
    }
  }
}

// Rules that take the empty text: those whose start leads to an end by rules that do. Each state
// that is reached so waits, at each of its symbols, for the symbol's rule.
void RuleCompiler::find_nullable() {
  struct Wait {
    int32_t symbol = 0;
    int32_t state = -1;  // that is reached then; -1: `rule` takes the empty text then
    int32_t rule = 0;
    int32_t next = -1;  // that waits for the same symbol
  };
  std::vector<Wait> waits;
  std::vector<int32_t> first(out_.rules.size(), -1);
  std::vector<bool> reached(out_.states.size(), false);
  std::vector<int32_t> states;  // to be looked at
  std::vector<int32_t> found;   // rules
  const auto reach = [&](int32_t state) {
    if (reached[static_cast<size_t>(state)]) return;
    reached[static_cast<size_t>(state)] = true;
    states.push_back(state);
  };
  const auto find = [&](int32_t symbol) {
    Grammar::Rule& rule = out_.rules[static_cast<size_t>(symbol)];
    if (std::exchange(rule.nullable, true)) return;
    found.push_back(symbol);
  };
  const auto wait = [&](Wait one) {
    int32_t& before = first[static_cast<size_t>(one.symbol)];
    one.next = std::exchange(before, static_cast<int32_t>(waits.size()));
    waits.push_back(one);
  };
  for (int32_t symbol = 0; symbol < out_.num_rules(); ++symbol) {
    const Grammar::Rule& rule = out_.rule(symbol);
    if (rule.part < 0) {
      reach(rule.start);
    } else if (rule.min == 0) {
      find(symbol);
    } else {
      wait({.symbol = rule.part, .rule = symbol});
    }
  }
  while (!states.empty() || !found.empty()) {
    if (!states.empty()) {
      const int32_t at = states.back();
      states.pop_back();
      fuel_.burn(4);
      if (out_.state(at).final) find(out_.state(at).rule);
      for (const SymbolEdge& edge : out_.symbols_of(at)) {
        fuel_.burn(2);
        if (out_.is_terminal(edge.symbol)) continue;
        if (out_.is_nullable(edge.symbol)) {
          reach(edge.target);
        } else {
          wait({.symbol = edge.symbol, .state = edge.target});
        }
      }
      continue;
    }
    const int32_t symbol = found.back();
    found.pop_back();
    for (int32_t at = first[static_cast<size_t>(symbol)]; at >= 0;) {
      const Wait one = waits[static_cast<size_t>(at)];
      at = one.next;
      if (one.state >= 0) {
        reach(one.state);
      } else {
        find(one.rule);
      }
    }
  }
  for (Grammar::Rule& rule : out_.rules) {
    if (rule.part >= 0 && out_.is_nullable(rule.part)) rule.min = 0;
  }
}

}  // namespace

size_t Grammar::bytes() const {
  return states.size() * sizeof(State) + byte_edges.size() * sizeof(ByteEdge) +
         symbol_edges.size() * sizeof(SymbolEdge) + token_edges.size() * sizeof(TokenEdge) +
         rules.size() * sizeof(Rule);
}

Result<Grammar> compile_rules(RuleSet& rules, RuleSet::Node start) {
  if (rules.fuel().out()) return tl::unexpected(rules.fuel().error());
  std::vector<bool> productive = rules.productive();
  if (rules.fuel().out()) return tl::unexpected(rules.fuel().error());
  if (!productive[static_cast<size_t>(start)]) return rules.nothing_valid();
  return RuleCompiler(rules, std::move(productive)).run(start);
}

}  // namespace rudder::constraint
