#include "rudder/constraint/earley_parser.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "rudder/constraint/text_counts.h"

namespace rudder::constraint {
namespace {

// Of one row: an ambiguous grammar may have ever more of them.
constexpr size_t kMaxRowItems = 50'000;

}  // namespace

int32_t ParserGrammar::Terminal::texts_from(TerminalDfa::State state, int32_t chars) const {
  // Inside of a character, where there are all of them: an escape of a control character has the
  // fewest ways to go on.
  constexpr int32_t kOfCharacter = 6;
  if (state == TerminalDfa::kClosed) return 1;
  if (!texts.empty()) return texts[static_cast<size_t>(state)];
  if (max == TerminalTables::kNoLimit) return kManyTexts;
  if (state == TerminalDfa::kOpening || tables->dfa().is_between(state)) {
    return text_count(choices, min, max, chars);
  }
  return chars + 1 < max ? kManyTexts : kOfCharacter;
}

void ParserGrammar::find_borders() {
  borders.fill(false);
  const auto mark = [&](size_t byte) {
    if (byte < borders.size()) borders[byte] = true;
  };
  for (const ByteEdge& edge : rules.byte_edges) {
    mark(edge.first);
    mark(size_t{edge.last} + 1);
  }
  for (const Terminal& terminal : terminals) {
    for (size_t byte = 1; byte < borders.size(); ++byte) {
      const TerminalDfa& dfa = terminal.tables->dfa();
      if (dfa.class_of(static_cast<uint8_t>(byte)) !=
          dfa.class_of(static_cast<uint8_t>(byte - 1))) {
        mark(byte);
      }
      const int32_t start = terminal.excluded.start();
      if (start != ExcludedValues::kOff) mark(byte);  // its texts tell bytes apart
    }
  }
}

void EarleyParser::Once::clear() {
  ++epoch_;
  size_ = 0;
}

bool EarleyParser::Once::add(int32_t symbol, const Item& item) {
  if (2 * (size_ + 1) > slots_.size()) grow();
  const size_t mask = slots_.size() - 1;
  uint64_t hash = static_cast<uint32_t>(item.state) * uint64_t{0x9E3779B97F4A7C15};
  hash ^= static_cast<uint32_t>(item.origin) * uint64_t{0xC2B2AE3D27D4EB4F};
  hash += (static_cast<uint32_t>(symbol) ^ (static_cast<uint64_t>(item.count) << 32)) *
          uint64_t{0x165667B19E3779F9};
  for (size_t at = (hash >> 29) & mask;; at = (at + 1) & mask) {
    Slot& slot = slots_[at];
    if (slot.epoch != epoch_) {
      slot = {.epoch = epoch_, .symbol = symbol, .item = item};
      ++size_;
      return true;
    }
    if (slot.symbol == symbol && slot.item == item) return false;
  }
}

void EarleyParser::Once::grow() {
  const std::vector<Slot> old = std::move(slots_);
  slots_.assign(2 * old.size(), Slot());
  const uint32_t epoch = epoch_;
  epoch_ = 1;
  size_ = 0;
  for (const Slot& slot : old) {
    if (slot.epoch == epoch) add(slot.symbol, slot.item);
  }
}

EarleyParser::EarleyParser(const ParserGrammar& grammar)
    : grammar_(grammar), rules_(grammar.rules) {
  begin_row();
  push({.state = rules_.rule(0).start, .origin = kWhole});
  next_accepting_ = rules_.rule(0).nullable;
  close_row();
}

std::span<const EarleyParser::Waiting> EarleyParser::waiting(int32_t row, int32_t symbol) const {
  const std::span<const Waiting> all = waiting(row);
  const auto less = [](const Waiting& one, int32_t wanted) { return one.symbol < wanted; };
  const auto begin = std::lower_bound(all.begin(), all.end(), symbol, less);
  const auto end =
      std::find_if(begin, all.end(), [&](const Waiting& one) { return one.symbol != symbol; });
  return {begin, end};
}

void EarleyParser::begin_row() {
  queue_.clear();
  next_waiting_.clear();
  next_open_.clear();
  next_accepting_ = false;
  queued_.clear();
  waits_.clear();
}

void EarleyParser::push(const Item& item) {
  if (item.state == kDone) {
    next_accepting_ = true;
  } else if (queued_.add(0, item)) {
    queue_.push_back(item);
  }
}

void EarleyParser::close_row() {
  for (size_t i = 0; i < queue_.size(); ++i) {
    if (queue_.size() + next_waiting_.size() > kMaxRowItems) {
      overflowed_ = true;
      break;
    }
    const Item item = queue_[i];
    process(item);
  }
  steps_ += queue_.size() + next_waiting_.size();
  std::erase_if(queue_, [&](const Item& item) {
    return rules_.bytes_of(item.state).empty() && rules_.tokens_of(item.state).empty();
  });
  if (next_waiting_.size() > 1) {
    std::stable_sort(next_waiting_.begin(), next_waiting_.end(),
                     [](const Waiting& a, const Waiting& b) { return a.symbol < b.symbol; });
  }
  store_row();
}

void EarleyParser::store_row() {
  items_.insert(items_.end(), queue_.begin(), queue_.end());
  waiting_.insert(waiting_.end(), next_waiting_.begin(), next_waiting_.end());
  open_.insert(open_.end(), next_open_.begin(), next_open_.end());
  item_ends_.push_back(static_cast<uint32_t>(items_.size()));
  waiting_ends_.push_back(static_cast<uint32_t>(waiting_.size()));
  open_ends_.push_back(static_cast<uint32_t>(open_.size()));
  accepting_.push_back(next_accepting_);
}

void EarleyParser::pop_rows(int32_t count) {
  if (count <= 0) return;
  const auto rows = static_cast<size_t>(num_rows() - count);
  accepting_.resize(rows);
  item_ends_.resize(rows);
  waiting_ends_.resize(rows);
  open_ends_.resize(rows);
  items_.resize(rows == 0 ? 0 : item_ends_.back());
  waiting_.resize(rows == 0 ? 0 : waiting_ends_.back());
  open_.resize(rows == 0 ? 0 : open_ends_.back());
}

void EarleyParser::process(const Item& item) {
  const Grammar::State& state = rules_.state(item.state);
  const Grammar::Rule& rule = rules_.rule(state.rule);
  bool ends = state.final;
  if (rule.part >= 0) {
    ends = item.count >= rule.min;
    // Where there is no maximum, counts above the minimum are all the same.
    const int32_t more =
        rule.max == Grammar::kUnbounded ? std::min(item.count + 1, rule.min) : item.count + 1;
    if (rule.max == Grammar::kUnbounded || item.count < rule.max) {
      Item behind = item;
      behind.count = more;
      wait(rule.part, behind, false);  // a round of nothing is no round
    }
  }
  for (const SymbolEdge& edge : rules_.symbols_of(item.state)) {
    begin_symbol(edge.symbol, {.state = edge.target, .origin = item.origin}, item);
  }
  if (!ends) return;
  if (item.origin == kWhole) {
    next_accepting_ = true;
  } else if (item.origin != num_rows()) {  // what was empty was passed when it was begun
    end_symbol(state.rule, item.origin);
  }
}

// `from` is at the symbol; `behind` is where it will be.
void EarleyParser::begin_symbol(int32_t symbol, const Item& behind, const Item& from) {
  const Grammar::State& state = rules_.state(behind.state);
  const bool last = state.final && state.leaf && from.origin != num_rows();
  if (!last) {
    wait(symbol, behind);
  } else if (from.origin == kWhole) {
    wait(symbol, {.state = kDone, .origin = kWhole});
  } else {
    for (const Waiting& one : waiting(from.origin, state.rule)) wait(symbol, one.item);
  }
}

void EarleyParser::wait(int32_t symbol, const Item& item, bool pass_empty) {
  if (!waits_.add(symbol, item)) return;
  const bool is_first = waits_.add(symbol, {.state = kDone, .origin = kDone, .count = kDone});
  next_waiting_.push_back({.symbol = symbol, .item = item});
  if (rules_.is_terminal(symbol)) {
    if (!is_first) return;
    next_open_.push_back({.symbol = symbol,
                          .row = num_rows(),
                          .state = grammar_.terminal(symbol).tables->dfa().start()});
    return;
  }
  if (is_first) push({.state = rules_.rule(symbol).start, .origin = num_rows()});
  if (pass_empty && rules_.rule(symbol).nullable) push(item);
}

void EarleyParser::end_symbol(int32_t symbol, int32_t row) {
  const std::span<const Waiting> all = waiting(row, symbol);
  steps_ += all.size();
  for (const Waiting& one : all) push(one.item);
}

template <typename Take>
void EarleyParser::for_each_target(int32_t state, uint8_t byte, const Take& take) const {
  const std::span<const ByteEdge> edges = rules_.bytes_of(state);
  if (rules_.state(state).overlapping) {
    for (const ByteEdge& edge : edges) {
      if (edge.first <= byte && byte <= edge.last) take(edge.target);
    }
    return;
  }
  const auto after = std::upper_bound(edges.begin(), edges.end(), byte,
                                      [](uint8_t b, const ByteEdge& e) { return b < e.first; });
  if (after != edges.begin() && byte <= std::prev(after)->last) take(std::prev(after)->target);
}

void EarleyParser::step(const Open& open, uint8_t byte) {
  const ParserGrammar::Terminal& terminal = grammar_.terminal(open.symbol);
  const TerminalDfa& dfa = terminal.tables->dfa();
  Open next = open;
  next.state = dfa.next(open.state, byte);
  if (next.state == TerminalDfa::kDead) return;
  if (next.state == TerminalDfa::kClosed) {
    if (open.chars >= terminal.min && !terminal.excluded.is_value(open.excluded)) {
      end_symbol(open.symbol, open.row);
    }
    return;
  }
  next.excluded = open.state == TerminalDfa::kOpening ? terminal.excluded.start()
                                                      : terminal.excluded.next(open.excluded, byte);
  next.chars += dfa.completes(open.state, next.state);
  if (dfa.missing(next.state) > terminal.max - next.chars) return;
  next_open_.push_back(next);
  if (dfa.may_end(next.state) && next.chars >= terminal.min) end_symbol(next.symbol, next.row);
}

void EarleyParser::scan(uint8_t byte) {
  const std::span<const Item> items = this->items();
  steps_ += items.size();
  for (const Item& item : items) {
    for_each_target(item.state, byte, [&](int32_t target) {
      push({.state = target, .origin = item.origin, .count = item.count});
    });
  }
  for (const Open& one : open()) step(one, byte);
}

bool EarleyParser::advance(uint8_t byte) {
  begin_row();
  scan(byte);
  if (queue_.empty() && next_open_.empty() && !next_accepting_) return false;
  close_row();
  return true;
}

bool EarleyParser::may_advance(uint8_t byte) const {
  for (const Item& item : items()) {
    bool any = false;
    for_each_target(item.state, byte, [&](int32_t) { any = true; });
    if (any) return true;
  }
  for (const Open& one : open()) {
    const ParserGrammar::Terminal& terminal = grammar_.terminal(one.symbol);
    const TerminalDfa& dfa = terminal.tables->dfa();
    const TerminalDfa::State next = dfa.next(one.state, byte);
    if (next == TerminalDfa::kDead) continue;
    if (next == TerminalDfa::kClosed) {
      if (one.chars >= terminal.min && !terminal.excluded.is_value(one.excluded)) return true;
      continue;
    }
    const int32_t chars = one.chars + (dfa.completes(one.state, next) ? 1 : 0);
    if (dfa.missing(next) <= terminal.max - chars) return true;
  }
  return false;
}

void EarleyParser::push_behind(const Open& open) {
  begin_row();
  end_symbol(open.symbol, open.row);
  close_row();
}

bool EarleyParser::accept(int32_t token, std::string_view bytes) {
  // What the token leads to by its id.
  std::vector<Item> behind;
  for (const Item& item : items()) {
    for (const Grammar::TokenEdge& edge : rules_.tokens_of(item.state)) {
      const TokenSet& set = rules_.token_sets[static_cast<size_t>(edge.set)];
      if (set.contains(token)) behind.push_back({.state = edge.target, .origin = item.origin});
    }
  }
  int32_t rows = 0;
  size_t taken = 0;
  // The last byte is taken below, together with the token.
  while (taken + 1 < bytes.size() && advance(static_cast<uint8_t>(bytes[taken]))) {
    ++rows;
    ++taken;
  }
  const bool by_bytes = !bytes.empty() && taken + 1 == bytes.size();
  if (!by_bytes) {
    pop_rows(rows);
    rows = 0;
  }
  begin_row();
  if (by_bytes) scan(static_cast<uint8_t>(bytes.back()));
  for (const Item& item : behind) push(item);
  if (queue_.empty() && next_open_.empty() && !next_accepting_) {
    pop_rows(rows);
    return false;
  }
  close_row();
  return true;
}

}  // namespace rudder::constraint
