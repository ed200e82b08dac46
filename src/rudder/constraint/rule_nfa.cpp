#include "rudder/constraint/rule_nfa.h"

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <unordered_map>
#include <utility>

namespace rudder::constraint {
namespace {

// An automaton without choices that has many more states than the one with them stays as it is.
constexpr size_t kGrowth = 4;
constexpr size_t kFreeGrowth = 2048;
constexpr int64_t kGrown = 3;  // a vector that grows has its old and its new memory for a moment
// Of a set of states as the key of a map, and of the state that it is, beside what is in them.
constexpr int64_t kSubsetBytes = 240;

struct HashSet {
  size_t operator()(const std::vector<int32_t>& set) const {
    uint64_t hash = 0xcbf29ce484222325;
    for (const int32_t one : set) hash = (hash ^ static_cast<uint32_t>(one)) * 0x100000001b3;
    return hash;
  }
};

}  // namespace

int32_t RuleNfa::add() {
  fuel_.burn(2);
  held_.add(kGrown * sizeof(int32_t));
  states_.push_back(-1);
  return static_cast<int32_t>(states_.size()) - 1;
}

void RuleNfa::link(int32_t from, Edge edge) {
  fuel_.burn(2);
  held_.add(kGrown * sizeof(Edge));
  edge.next =
      std::exchange(states_[static_cast<size_t>(from)], static_cast<int32_t>(edges_.size()));
  edges_.push_back(edge);
}

void RuleNfa::link_free(int32_t from, int32_t to) {
  link(from, {.to = to});
}

void RuleNfa::link_symbol(int32_t from, int32_t symbol, int32_t to) {
  link(from, {.kind = Edge::Kind::kSymbol, .symbol = symbol, .to = to});
}

void RuleNfa::link_bytes(int32_t from, uint8_t first, uint8_t last, int32_t to) {
  link(from, {.kind = Edge::Kind::kBytes, .first = first, .last = last, .to = to});
}

int32_t RuleNfa::take_text(int32_t from, std::string_view bytes) {
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    const int32_t to = add();
    link_bytes(from, byte, byte, to);
    from = to;
  }
  return from;
}

int32_t RuleNfa::take_char(int32_t from, const CharSet& set) {
  const int32_t end = add();
  for_each_utf8_range(set, [&](const Utf8Range& range) {
    int32_t at = from;
    for (size_t i = 0; i < range.size; ++i) {
      const int32_t to = i + 1 == range.size ? end : add();
      link_bytes(at, range.first[i], range.last[i], to);
      at = to;
    }
  });
  return end;
}

void RuleNfa::close(Set& set, int32_t end, std::vector<uint8_t>& seen) const {
  for (const int32_t state : set) seen[static_cast<size_t>(state)] = 1;
  int64_t work = 0;
  for (size_t i = 0; i < set.size(); ++i) {
    for (int32_t at = states_[static_cast<size_t>(set[i])]; at >= 0; ++work) {
      const Edge& edge = edges_[static_cast<size_t>(at)];
      at = edge.next;
      if (edge.kind != Edge::Kind::kFree) continue;
      if (std::exchange(seen[static_cast<size_t>(edge.to)], uint8_t{1}) == 0)
        set.push_back(edge.to);
    }
  }
  fuel_.burn(work + static_cast<int64_t>(set.size()));
  for (const int32_t state : set) seen[static_cast<size_t>(state)] = 0;
  std::erase_if(set, [&](int32_t state) {
    if (state == end) return false;
    for (int32_t at = states_[static_cast<size_t>(state)]; at >= 0;) {
      const Edge& edge = edges_[static_cast<size_t>(at)];
      if (edge.kind != Edge::Kind::kFree) return false;
      at = edge.next;
    }
    return true;
  });
  std::sort(set.begin(), set.end());
}

// The automaton without choices: each state a set of this one's.
class RuleNfa::Determinizer {
 public:
  Determinizer(const RuleNfa& nfa, int32_t end)
      : nfa_(nfa),
        end_(end),
        held_(nfa.fuel_, static_cast<int64_t>(nfa.size() * sizeof(int32_t))),
        seen_(nfa.size()),
        id_of_one_(nfa.size(), -1) {
    state_of({0});
  }

  std::optional<RuleAutomaton> run() {
    const size_t most = kGrowth * nfa_.size() + kFreeGrowth;
    for (size_t i = 0; i < sets_.size(); ++i) {
      if (sets_.size() > most) return std::nullopt;
      if (nfa_.fuel_.out()) break;
      expand(i);
    }
    return std::move(out_);
  }

 private:
  int32_t state_of(Set set) {
    nfa_.close(set, end_, seen_);
    if (set.size() == 1) return state_of_one(set.front());
    const auto next = static_cast<int32_t>(sets_.size());
    const auto [known, is_new] = ids_.try_emplace(std::move(set), next);
    if (is_new) {
      nfa_.fuel_.burn(20 + static_cast<int64_t>(known->first.size()) / 4);
      held_.add(kSubsetBytes + std::ssize(known->first) * int64_t{sizeof(int32_t)});
      sets_.push_back(&known->first);
      out_.states.emplace_back().final =
          std::binary_search(known->first.begin(), known->first.end(), end_);
    }
    return known->second;
  }

  // Most sets are of one state: behind each byte of a literal but the last.
  int32_t state_of_one(int32_t state) {
    int32_t& known = id_of_one_[static_cast<size_t>(state)];
    if (known >= 0) return known;
    known = static_cast<int32_t>(sets_.size());
    nfa_.fuel_.burn(20);
    held_.add(kSubsetBytes);
    sets_.push_back(&sets_of_one_.emplace_back(1, state));
    out_.states.emplace_back().final = state == end_;
    return known;
  }

  void expand(size_t index) {
    byte_edges_.clear();
    symbol_edges_.clear();
    for (const int32_t state : *sets_[index]) {
      for (int32_t at = nfa_.states_[static_cast<size_t>(state)]; at >= 0;) {
        const Edge& edge = nfa_.edges_[static_cast<size_t>(at)];
        at = edge.next;
        if (edge.kind == Edge::Kind::kBytes) {
          byte_edges_.push_back({edge.first, edge.last, edge.to});
        } else if (edge.kind == Edge::Kind::kSymbol) {
          symbol_edges_.push_back({edge.symbol, edge.to});
        }
      }
    }
    const auto edges = static_cast<int64_t>(byte_edges_.size() + symbol_edges_.size());
    nfa_.fuel_.burn(2 * edges + 40);
    held_.add(edges * int64_t{sizeof(ByteEdge)});
    std::vector<ByteEdge> bytes = expand_bytes();
    std::vector<SymbolEdge> symbols = expand_symbols();
    out_.states[index].bytes = std::move(bytes);
    out_.states[index].symbols = std::move(symbols);
  }

  // Bytes that no edge tells apart go together.
  std::vector<ByteEdge> expand_bytes() {
    if (byte_edges_.empty()) return {};
    if (byte_edges_.size() == 1) {
      const ByteEdge edge = byte_edges_.front();
      return {{edge.first, edge.last, state_of({edge.target})}};
    }
    std::array<bool, 257> border = {};
    for (const ByteEdge& edge : byte_edges_) {
      border[edge.first] = border[edge.last + size_t{1}] = true;
    }
    std::array<uint16_t, 257> group = {};
    std::vector<std::pair<uint8_t, uint8_t>> ranges;
    for (size_t byte = 0; byte < 256; ++byte) {
      if (byte == 0 || border[byte]) ranges.emplace_back(byte, byte);
      ranges.back().second = static_cast<uint8_t>(byte);
      group[byte] = static_cast<uint16_t>(ranges.size() - 1);
    }
    std::vector<Set> targets(ranges.size());
    for (const ByteEdge& edge : byte_edges_) {
      for (size_t i = group[edge.first]; i <= group[edge.last]; ++i) {
        targets[i].push_back(edge.target);
      }
    }
    std::vector<ByteEdge> out;
    for (size_t i = 0; i < ranges.size(); ++i) {
      if (targets[i].empty()) continue;
      const int32_t target = target_of(std::move(targets[i]));
      const bool joins =
          !out.empty() && out.back().target == target && out.back().last + 1 == ranges[i].first;
      if (joins) {
        out.back().last = ranges[i].second;
      } else {
        out.push_back({ranges[i].first, ranges[i].second, target});
      }
    }
    return out;
  }

  std::vector<SymbolEdge> expand_symbols() {
    std::sort(symbol_edges_.begin(), symbol_edges_.end(),
              [](const SymbolEdge& a, const SymbolEdge& b) {
                return std::pair(a.symbol, a.target) < std::pair(b.symbol, b.target);
              });
    std::vector<SymbolEdge> out;
    for (size_t i = 0; i < symbol_edges_.size();) {
      const int32_t symbol = symbol_edges_[i].symbol;
      Set targets;
      for (; i < symbol_edges_.size() && symbol_edges_[i].symbol == symbol; ++i) {
        targets.push_back(symbol_edges_[i].target);
      }
      out.push_back({symbol, target_of(std::move(targets))});
    }
    return out;
  }

  int32_t target_of(Set set) {
    std::sort(set.begin(), set.end());
    set.erase(std::unique(set.begin(), set.end()), set.end());
    return state_of(std::move(set));
  }

  const RuleNfa& nfa_;
  const int32_t end_;
  Held held_;
  std::vector<uint8_t> seen_;
  std::unordered_map<Set, int32_t, HashSet> ids_;  // of sets of several states, or none
  std::vector<int32_t> id_of_one_;                 // by state; -1: none yet
  std::deque<Set> sets_of_one_;
  std::vector<const Set*> sets_;
  std::vector<ByteEdge> byte_edges_;
  std::vector<SymbolEdge> symbol_edges_;
  RuleAutomaton out_;
};

RuleAutomaton RuleNfa::without_free_edges(int32_t end) const {
  RuleAutomaton out;
  out.states.resize(size());
  std::vector<uint8_t> seen(size());
  for (size_t i = 0; i < size() && !fuel_.out(); ++i) {
    RuleAutomaton::State& state = out.states[i];
    Set set = {static_cast<int32_t>(i)};
    close(set, end, seen);
    for (const int32_t one : set) {
      state.final = state.final || one == end;
      for (int32_t at = states_[static_cast<size_t>(one)]; at >= 0;) {
        const Edge& edge = edges_[static_cast<size_t>(at)];
        at = edge.next;
        if (edge.kind == Edge::Kind::kBytes) {
          state.bytes.push_back({edge.first, edge.last, edge.to});
        } else if (edge.kind == Edge::Kind::kSymbol) {
          state.symbols.push_back({edge.symbol, edge.to});
        }
      }
    }
    const size_t edges = state.bytes.size() + state.symbols.size();
    fuel_.burn(static_cast<int64_t>(2 * edges) + 20);
    held_.add(static_cast<int64_t>(sizeof(state) + 2 * edges * sizeof(ByteEdge)));
    std::sort(state.bytes.begin(), state.bytes.end(),
              [](const ByteEdge& a, const ByteEdge& b) { return a.first < b.first; });
    state.overlapping = true;
  }
  return out;
}

RuleAutomaton RuleNfa::finish(int32_t end) const {
  if (auto found = Determinizer(*this, end).run()) return std::move(*found);
  return without_free_edges(end);
}

}  // namespace rudder::constraint
