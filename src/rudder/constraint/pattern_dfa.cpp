#include "rudder/constraint/pattern_dfa.h"

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "rudder/base/utf8.h"
#include "rudder/constraint/json_text.h"
#include "rudder/constraint/rule_set.h"

namespace rudder::constraint {
namespace {

using Kind = PatternTree::Kind;

constexpr size_t kMaxNfaStates = 200'000;            // of the automaton with choices
constexpr size_t kMaxDfaStates = 60'000;             // of the one without
constexpr size_t kMaxMembers = 2'000'000;            // in all sets
constexpr int64_t kMaxSubsetWork = Fuel::kWork / 4;  // past it the choices stay
// Of a state of it, with its share of what a vector that grows leaves unused, and its lists' first
// entries.
constexpr int64_t kNfaStateBytes = 200;
constexpr int64_t kWorkOfMember = 5;  // of a set: found, sorted and looked up
constexpr int64_t kSetBytes =
    160;  // of a set as a state and as the key of a map, beside its members

// The automaton with choices (Thompson's): states, edges by a range of bytes, and free ones.
class PatternNfa {
 public:
  PatternNfa(Fuel& fuel, bool quoted) : fuel_(fuel), held_(fuel), quoted_(quoted) {}

  struct Edge {
    uint8_t first = 0;
    uint8_t last = 0;
    int32_t to = 0;
  };
  struct State {
    std::vector<Edge> edges;
    std::vector<int32_t> free;
    bool boundary = true;
    bool takes_anything = false;  // and stays
  };

  int32_t add(bool boundary = true) {
    fuel_.burn(20);
    held_.add(kNfaStateBytes);
    states_.emplace_back().boundary = boundary;
    return static_cast<int32_t>(states_.size()) - 1;
  }
  // The state behind what matches `tree` from `from` on.
  int32_t build(const PatternTree& tree, int32_t from);

  bool too_large() const { return states_.size() > kMaxNfaStates || fuel_.out(); }
  const State& at(int32_t state) const { return states_[static_cast<size_t>(state)]; }
  const std::vector<State>& all() const { return states_; }

 private:
  void link(int32_t from, uint8_t first, uint8_t last, int32_t to) {
    fuel_.burn(2);
    held_.add(2 * sizeof(Edge));
    states_[static_cast<size_t>(from)].edges.push_back({.first = first, .last = last, .to = to});
  }
  void free_link(int32_t from, int32_t to) {
    fuel_.burn(2);
    held_.add(2 * sizeof(int32_t));
    states_[static_cast<size_t>(from)].free.push_back(to);
  }
  int32_t build_repeat(const PatternTree& tree, int32_t from);
  void add_chars(const CharSet& set, int32_t from, int32_t to);
  void add_spelled(std::string_view bytes, int32_t from, int32_t to);

  Fuel& fuel_;
  Held held_;
  const bool quoted_;
  std::vector<State> states_;
};

bool takes_characters(const PatternTree& tree) {
  return tree.kind == Kind::kChars ||
         std::any_of(tree.parts.begin(), tree.parts.end(), takes_characters);
}

int32_t PatternNfa::build(const PatternTree& tree, int32_t from) {
  fuel_.burn(2);
  if (too_large()) return from;
  switch (tree.kind) {
    case Kind::kChars: {
      const int32_t to = add();
      add_chars(tree.set, from, to);
      return to;
    }
    case Kind::kChoice: {
      const int32_t end = add();
      for (const PatternTree& part : tree.parts) {
        const int32_t begin = add();
        free_link(from, begin);
        free_link(build(part, begin), end);
      }
      return end;
    }
    case Kind::kRepeat:
      return build_repeat(tree, from);
    default:
      for (const PatternTree& part : tree.parts) from = build(part, from);
      return from;
  }
}

int32_t PatternNfa::build_repeat(const PatternTree& tree, int32_t from) {
  const PatternTree& part = tree.parts[0];
  if (!takes_characters(part)) return from;  // so many times nothing is nothing
  for (int32_t i = 0; i < tree.min && !too_large(); ++i) from = build(part, from);
  if (tree.max == RuleSet::kUnbounded) {
    const int32_t loop = add();
    free_link(from, loop);
    free_link(build(part, loop), loop);
    const bool anything = part.kind == Kind::kChars && part.set == CharSet::all();
    states_[static_cast<size_t>(loop)].takes_anything = anything;
    return loop;
  }
  const int32_t end = add();
  for (int32_t i = tree.min; i < tree.max && !too_large(); ++i) {
    free_link(from, end);
    from = build(part, from);
  }
  free_link(from, end);
  return end;
}

void PatternNfa::add_spelled(std::string_view bytes, int32_t from, int32_t to) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    const auto byte = static_cast<uint8_t>(bytes[i]);
    const int32_t next = i + 1 == bytes.size() ? to : add(false);
    link(from, byte, byte, next);
    from = next;
  }
}

void PatternNfa::add_chars(const CharSet& set, int32_t from, int32_t to) {
  const CharSet scalars = set.without({{0xD800, 0xDFFF}});
  const CharSet plain = quoted_ ? scalars.without(must_escape()) : scalars;
  for_each_utf8_range(plain, [&](const Utf8Range& range) {
    int32_t at = from;
    for (size_t i = 0; i < range.size; ++i) {
      const int32_t next = i + 1 == range.size ? to : add(false);
      link(at, range.first[i], range.last[i], next);
      at = next;
    }
  });
  if (!quoted_) return;
  for (const CharRange& range : must_escape().ranges()) {
    for (uint32_t c = range.first; c <= range.last; ++c) {
      std::string one;
      append_utf8(one, c);
      if (scalars.contains(c)) add_spelled(json_spelling(one), from, to);
    }
  }
}

// The automaton without choices: each state a set of the other's.
class Subsets {
 public:
  Subsets(Fuel& fuel, const PatternNfa& nfa, int32_t begin, int32_t end, bool quoted)
      : fuel_(fuel), held_(fuel), nfa_(nfa), end_(end), quoted_(quoted), seen_(nfa.all().size()) {
    make_classes();
    for (int i = 0; i < 3; ++i) add_state(i == ByteAutomaton::kBody);
    for (size_t i = 0; i < nfa.all().size(); ++i) {
      if (!nfa.all()[i].takes_anything) continue;
      const auto member = static_cast<int32_t>(i);
      Set rest = closure({member});
      if (std::binary_search(rest.begin(), rest.end(), end_)) rests_[member] = std::move(rest);
    }
    sets_[ByteAutomaton::kBody] = closure({begin});
    ids_.emplace(sets_[ByteAutomaton::kBody], ByteAutomaton::kBody);
  }

  std::optional<ByteAutomaton> build();

 private:
  using Set = std::vector<int32_t>;

  void make_classes();
  void add_state(bool boundary) {
    sets_.emplace_back();
    out_.next.resize(out_.next.size() + static_cast<size_t>(out_.num_classes),
                     ByteAutomaton::kDead);
    out_.boundary.push_back(boundary);
    out_.accepting.push_back(false);
  }
  Set closure(Set members);
  int32_t state_of(Set set);
  int32_t& next(int32_t state, int32_t byte_class) {
    return out_.next[static_cast<size_t>(int64_t{state} * out_.num_classes + byte_class)];
  }

  Fuel& fuel_;
  Held held_;
  const PatternNfa& nfa_;
  const int32_t end_;
  const bool quoted_;
  std::vector<uint8_t> seen_;     // while a closure is made
  std::map<int32_t, Set> rests_;  // closures of members where anything may come until the end
  std::vector<uint8_t> class_byte_;
  std::vector<Set> sets_;
  std::map<Set, int32_t> ids_;
  size_t members_ = 0;
  int64_t work_ = 0;
  ByteAutomaton out_;
};

// Bytes that no edge tells apart are one class.
void Subsets::make_classes() {
  std::array<bool, 257> border = {};
  border[0] = border['"'] = border['"' + 1] = true;
  for (const PatternNfa::State& state : nfa_.all()) {
    for (const PatternNfa::Edge& edge : state.edges) {
      border[edge.first] = border[edge.last + size_t{1}] = true;
    }
  }
  for (size_t byte = 0; byte < 256; ++byte) {
    if (border[byte]) class_byte_.push_back(static_cast<uint8_t>(byte));
    out_.classes[byte] = static_cast<uint8_t>(class_byte_.size() - 1);
  }
  out_.num_classes = static_cast<int32_t>(class_byte_.size());
}

Subsets::Set Subsets::closure(Set members) {
  for (const int32_t member : members) seen_[static_cast<size_t>(member)] = 1;
  for (size_t i = 0; i < members.size(); ++i) {
    for (const int32_t to : nfa_.at(members[i]).free) {
      if (std::exchange(seen_[static_cast<size_t>(to)], uint8_t{1}) == 0) members.push_back(to);
    }
  }
  for (const int32_t member : members) seen_[static_cast<size_t>(member)] = 0;
  // Where anything may come until the end, no other member adds to that.
  for (const int32_t member : members) {
    const auto rest = rests_.find(member);
    if (rest != rests_.end()) return rest->second;
  }
  // Those with free edges alone say nothing more.
  std::erase_if(members,
                [&](int32_t member) { return member != end_ && nfa_.at(member).edges.empty(); });
  std::sort(members.begin(), members.end());
  return members;
}

int32_t Subsets::state_of(Set set) {
  if (set.empty()) return ByteAutomaton::kDead;
  const bool boundary = nfa_.at(set.front()).boundary;
  const auto [known, is_new] = ids_.try_emplace(std::move(set), static_cast<int32_t>(sets_.size()));
  if (is_new) {
    add_state(boundary);
    sets_.back() = known->first;
    members_ += known->first.size();
  }
  return known->second;
}

std::optional<ByteAutomaton> Subsets::build() {
  for (size_t i = ByteAutomaton::kBody; i < sets_.size(); ++i) {
    if (i == ByteAutomaton::kClosed) continue;
    if (sets_.size() > kMaxDfaStates || members_ > kMaxMembers) return std::nullopt;
    const auto state = static_cast<int32_t>(i);
    const auto set_bytes = std::ssize(sets_[i]) * int64_t{2 * sizeof(int32_t)};
    const auto row_bytes = int64_t{out_.num_classes} * int64_t{3 * sizeof(int32_t)};
    if (!held_.add(kSetBytes + set_bytes + row_bytes)) return std::nullopt;
    for (int32_t byte_class = 0; byte_class < out_.num_classes; ++byte_class) {
      const uint8_t byte = class_byte_[static_cast<size_t>(byte_class)];
      Set to;
      const int64_t work = std::ssize(sets_[i]) / 3 + 8;
      work_ += work;
      if (!fuel_.burn(work) || work_ > kMaxSubsetWork) return std::nullopt;
      for (const int32_t member : sets_[i]) {
        for (const PatternNfa::Edge& edge : nfa_.at(member).edges) {
          const bool has = edge.first <= byte && byte <= edge.last;
          if (has && std::exchange(seen_[static_cast<size_t>(edge.to)], uint8_t{1}) == 0) {
            to.push_back(edge.to);
          }
        }
      }
      for (const int32_t member : to) seen_[static_cast<size_t>(member)] = 0;
      if (to.empty()) continue;
      Set behind = closure(std::move(to));
      const int64_t work_behind = kWorkOfMember * std::ssize(behind) + 20;
      work_ += work_behind;
      fuel_.burn(work_behind);
      next(state, byte_class) = state_of(std::move(behind));
    }
    out_.accepting[i] = std::binary_search(sets_[i].begin(), sets_[i].end(), end_);
  }
  if (!finish_automaton(fuel_, out_, quoted_)) return std::nullopt;
  return std::move(out_);
}

// Backwards from where the text may end; what never gets there is cut off.
void count_missing(ByteAutomaton& out) {
  struct Before {
    int32_t from = 0;
    int32_t chars = 0;
  };
  const size_t size = out.boundary.size();
  const auto width = static_cast<size_t>(out.num_classes);
  std::vector<std::vector<Before>> before(size);
  for (size_t i = 0; i < size; ++i) {
    for (size_t c = 0; c < width; ++c) {
      const int32_t to = out.next[i * width + c];
      if (to == ByteAutomaton::kDead || to == ByteAutomaton::kClosed) continue;
      const bool completes = i != ByteAutomaton::kOpening && out.boundary[static_cast<size_t>(to)];
      before[static_cast<size_t>(to)].push_back(
          {.from = static_cast<int32_t>(i), .chars = completes ? 1 : 0});
    }
  }
  out.missing.assign(size, ByteAutomaton::kNever);
  std::deque<int32_t> open;
  for (size_t i = 0; i < size; ++i) {
    if (!out.accepting[i]) continue;
    out.missing[i] = 0;
    open.push_back(static_cast<int32_t>(i));
  }
  while (!open.empty()) {
    const int32_t at = open.front();
    open.pop_front();
    for (const Before& one : before[static_cast<size_t>(at)]) {
      const int32_t missing = out.missing[static_cast<size_t>(at)] + one.chars;
      if (missing >= out.missing[static_cast<size_t>(one.from)]) continue;
      out.missing[static_cast<size_t>(one.from)] = missing;
      if (one.chars == 0) {
        open.push_front(one.from);
      } else {
        open.push_back(one.from);
      }
    }
  }
  for (int32_t& to : out.next) {
    if (to >= 0 && to != ByteAutomaton::kClosed &&
        out.missing[static_cast<size_t>(to)] == ByteAutomaton::kNever) {
      to = ByteAutomaton::kDead;
    }
  }
}

}  // namespace

bool finish_automaton(Fuel& fuel, ByteAutomaton& automaton, bool quoted) {
  // The ways back, and the automaton itself, which stays.
  const auto entries = std::ssize(automaton.next);
  const Held held(fuel, entries * 16 + std::ssize(automaton.boundary) * 40);
  if (!fuel.burn(entries * 2) || !fuel.hold(entries * int64_t{sizeof(int32_t)})) return false;
  const auto width = static_cast<size_t>(automaton.num_classes);
  if (quoted) {
    const size_t quote = automaton.classes['"'];
    for (size_t i = ByteAutomaton::kBody; i < automaton.accepting.size(); ++i) {
      if (automaton.accepting[i]) automaton.next[i * width + quote] = ByteAutomaton::kClosed;
    }
    automaton.next[ByteAutomaton::kOpening * width + quote] = ByteAutomaton::kBody;
  }
  count_missing(automaton);
  return true;
}

std::optional<ByteAutomaton> pattern_automaton(Fuel& fuel, const PatternTree& tree, bool quoted) {
  PatternNfa nfa(fuel, quoted);
  const int32_t begin = nfa.add();
  // The end is a state of its own, so that it is told from others by its number.
  const int32_t last = nfa.build(tree, begin);
  if (nfa.too_large()) return std::nullopt;
  return Subsets(fuel, nfa, begin, last, quoted).build();
}

}  // namespace rudder::constraint
