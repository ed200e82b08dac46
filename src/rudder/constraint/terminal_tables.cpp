#include "rudder/constraint/terminal_tables.h"

#include <algorithm>
#include <utility>

#include "rudder/constraint/json_text.h"

namespace rudder::constraint {
namespace {

// Room for fewer characters has a mask of its own; few tokens are longer.
constexpr int32_t kMasks = 17;
constexpr size_t kFewTokens = 1024;

void set_bit(std::span<uint32_t> mask, int32_t token) {
  mask[static_cast<size_t>(token) / 32] |= uint32_t{1} << (token % 32);
}

void add_bits(const std::vector<uint32_t>& bits, std::span<uint32_t> mask) {
  for (size_t i = 0; i < bits.size(); ++i) mask[i] |= bits[i];
}

}  // namespace

TerminalTables::TerminalTables(const Terminal& terminal, const TokenOrder& order, size_t words)
    : dfa_(terminal) {
  for (size_t state = 0; state < dfa_.size(); ++state) {
    states_.push_back(make(static_cast<State>(state), order, words));
  }
}

TerminalTables::StateTables TerminalTables::make(State state, const TokenOrder& order,
                                                 size_t words) const {
  struct Place {
    State state = TerminalDfa::kDead;
    int32_t chars = 0;
  };
  StateTables tables;
  std::vector<Inside> inside;
  std::vector<Place> path(1);  // after each byte of the token before, as far as it got
  for (int byte = 0; byte < 256; ++byte) {
    if (dfa_.next(state, static_cast<uint8_t>(byte)) == TerminalDfa::kDead) continue;
    path.assign(1, {.state = state, .chars = 0});
    const auto [begin, end] = order.beginning_with(static_cast<uint8_t>(byte));
    for (size_t i = begin; i < end; ++i) {
      const OrderedToken& token = order.tokens()[i];
      const size_t common = i == begin ? 0 : token.common;
      if (common < path.size()) path.resize(common + 1);
      while (path.size() <= token.bytes.size()) {
        const Place at = path.back();
        if (at.state == TerminalDfa::kDead || at.state == TerminalDfa::kClosed) break;
        const State to = dfa_.next(at.state, static_cast<uint8_t>(token.bytes[path.size() - 1]));
        path.push_back({.state = to, .chars = at.chars + TerminalDfa::completes(at.state, to)});
      }
      const Place last = path.back();
      if (last.state == TerminalDfa::kDead) continue;
      if (last.state == TerminalDfa::kClosed) {
        const int32_t after = order.after_quote(token.bytes.substr(path.size() - 1));
        tables.closing.push_back({.chars = last.chars, .after = after, .token = token.id});
      } else {
        const bool begun = last.state != TerminalDfa::kBody;
        inside.push_back({.chars = last.chars + begun, .token = token.id});
      }
    }
  }
  const auto fewer = [](const auto& a, const auto& b) { return a.chars < b.chars; };
  std::stable_sort(tables.closing.begin(), tables.closing.end(), fewer);
  std::stable_sort(inside.begin(), inside.end(), fewer);
  tables.most = inside.empty() ? 0 : inside.back().chars;
  if (inside.size() <= kFewTokens) {
    tables.listed = std::move(inside);
    return tables;
  }
  tables.all.resize(words);
  const int32_t masks = std::min(kMasks, tables.most);
  for (const Inside& one : inside) {
    while (std::cmp_less(tables.masks.size(), masks) &&
           std::cmp_less(tables.masks.size(), one.chars)) {
      tables.masks.push_back(tables.all);
    }
    set_bit(tables.all, one.token);
    if (one.chars >= masks) tables.listed.push_back(one);
  }
  return tables;
}

void TerminalTables::allow_inside(State state, int32_t room, std::span<uint32_t> mask) const {
  const StateTables& tables = states_[static_cast<size_t>(state)];
  if (!tables.all.empty()) {
    if (room >= tables.most) return add_bits(tables.all, mask);
    if (std::cmp_less(room, tables.masks.size())) {
      return add_bits(tables.masks[static_cast<size_t>(room)], mask);
    }
    add_bits(tables.masks.back(), mask);
  }
  for (const Inside& one : tables.listed) {
    if (one.chars > room) break;
    set_bit(mask, one.token);
  }
}

size_t TerminalTables::bytes() const {
  size_t bytes = dfa_.size() * 256 * sizeof(State);
  for (const StateTables& tables : states_) {
    bytes += (tables.masks.size() + 1) * tables.all.size() * sizeof(uint32_t) +
             tables.listed.size() * sizeof(Inside) + tables.closing.size() * sizeof(Closing);
  }
  return bytes;
}

ExcludedValues::ExcludedValues(const std::vector<std::string>& values) : nodes_(1) {
  for (const std::string& value : values) {
    size_t at = 0;
    for (const char c : json_spelling(value)) {
      const auto next = static_cast<int32_t>(nodes_.size());
      const auto [edge, is_new] = nodes_[at].next.try_emplace(static_cast<unsigned char>(c), next);
      at = static_cast<size_t>(edge->second);
      if (is_new) nodes_.emplace_back();
    }
    nodes_[at].is_value = true;
  }
}

std::shared_ptr<const TerminalTables> TerminalTableCache::get(const Terminal& terminal,
                                                              const TokenOrder& order,
                                                              size_t words) {
  Terminal form = terminal;
  form.min = form.quoted ? 0 : 1;
  form.max = Terminal::kUnbounded;
  form.excluded.clear();
  std::weak_ptr<const TerminalTables>& known = known_[to_text(form)];
  std::shared_ptr<const TerminalTables> tables = known.lock();
  if (tables == nullptr) {
    tables = std::make_shared<const TerminalTables>(form, order, words);
    known = tables;
    std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
  }
  return tables;
}

}  // namespace rudder::constraint
