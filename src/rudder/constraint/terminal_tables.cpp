#include "rudder/constraint/terminal_tables.h"

#include <algorithm>
#include <utility>

#include "rudder/base/token_mask.h"
#include "rudder/constraint/json_text.h"

namespace rudder::constraint {
namespace {

// Room for fewer characters has a mask of its own; few tokens are longer.
constexpr int32_t kMasks = 17;
constexpr size_t kFewTokens = 1024;
// Tokens that are looked at beforehand, in all states together: half a second's work.
constexpr size_t kMaxLookedAt = 64'000'000;
constexpr size_t kMaxLate = 2048;  // kept of what is worked out late

void add_bits(const std::vector<uint32_t>& bits, std::span<uint32_t> mask) {
  for (size_t i = 0; i < bits.size(); ++i) mask[i] |= bits[i];
}

}  // namespace

TerminalTables::TerminalTables(TerminalDfa dfa, bool counted,
                               std::shared_ptr<const TokenOrder> order, size_t words)
    : dfa_(std::move(dfa)), counted_(counted), order_(std::move(order)), words_(words) {
  bytes_ = dfa_.bytes();
  if (counted_) {
    for (size_t state = 0; state < dfa_.size(); ++state) {
      kinds_.push_back(static_cast<int32_t>(state));
      near_.push_back(
          make(static_cast<State>(state), {&order_->short_tokens(), &order_->long_tokens()}));
      bytes_ += near_.back()->bytes();
    }
    return;
  }
  kinds_ = dfa_.kinds(TokenOrder::kShort);
  far_.resize(dfa_.size());
  size_t looked_at = 0;
  size_t late = 0;
  for (size_t state = 0; state < kinds_.size(); ++state) {
    const auto kind = static_cast<size_t>(kinds_[state]);
    if (kind < near_.size() && near_[kind] != nullptr) continue;
    near_.resize(std::max(near_.size(), kind + 1));
    const auto at = static_cast<State>(state);
    const size_t count = count_tokens(at, order_->short_tokens());
    if (looked_at + count > kMaxLookedAt) {
      ++late;
      continue;
    }
    looked_at += count;
    near_[kind] = make(at, {&order_->short_tokens()});
    bytes_ += near_[kind]->bytes();
  }
  bytes_ += std::min(late, kMaxLate) * words * sizeof(uint32_t);
}

size_t TerminalTables::count_tokens(State state, const List& list) const {
  size_t count = 0;
  for (size_t byte = 0; byte < 256; ++byte) {
    if (dfa_.next(state, static_cast<uint8_t>(byte)) == TerminalDfa::kDead) continue;
    count += list.first[byte + 1] - list.first[byte];
  }
  return count;
}

TerminalTables::View TerminalTables::tokens(State state) const {
  const auto at = static_cast<size_t>(state);
  const auto kind = static_cast<size_t>(kinds_[at]);
  if (counted_) return {.near = near_[kind], .far = nullptr};
  const auto find = [&](std::shared_ptr<const Tokens>& known, const List& list) {
    {
      const std::lock_guard lock(mutex_);
      if (known != nullptr) return known;
    }
    // Without the lock: other threads go on meanwhile, or make the same.
    std::shared_ptr<const Tokens> made = make(state, {&list});
    const std::lock_guard lock(mutex_);
    if (known == nullptr && num_late_ < kMaxLate) {
      ++num_late_;
      known = made;
    }
    return made;
  };
  return {.near = find(near_[kind], order_->short_tokens()),
          .far = find(far_[at], order_->long_tokens())};
}

std::shared_ptr<const TerminalTables::Tokens> TerminalTables::make(
    State state, std::initializer_list<const List*> lists) const {
  struct Place {
    State state = TerminalDfa::kDead;
    int32_t chars = 0;
  };
  auto tokens = std::make_shared<Tokens>();
  std::vector<Tokens::Inside> inside;
  std::vector<Place> path;  // after each byte of the token before, as far as it got
  const auto look = [&](const List& list, size_t byte) {
    path.assign(1, {.state = state, .chars = 0});
    const size_t begin = list.first[byte];
    for (size_t i = begin; i < list.first[byte + 1]; ++i) {
      const OrderedToken& token = list.tokens[i];
      const size_t common = i == begin ? 0 : token.common;
      if (common < path.size()) path.resize(common + 1);
      while (path.size() <= token.bytes.size()) {
        const Place at = path.back();
        if (at.state == TerminalDfa::kDead || at.state == TerminalDfa::kClosed) break;
        const State to = dfa_.next(at.state, static_cast<uint8_t>(token.bytes[path.size() - 1]));
        const bool completes = to >= 0 && dfa_.completes(at.state, to);
        path.push_back({.state = to, .chars = at.chars + completes});
      }
      const Place last = path.back();
      if (last.state == TerminalDfa::kDead) continue;
      if (last.state == TerminalDfa::kClosed) {
        const int32_t after = order_->after_quote(token.bytes.substr(path.size() - 1));
        tokens->closing_.push_back({.chars = last.chars, .after = after, .token = token.id});
      } else {
        inside.push_back({.chars = last.chars + dfa_.missing(last.state), .token = token.id});
      }
    }
  };
  for (size_t byte = 0; byte < 256; ++byte) {
    if (dfa_.next(state, static_cast<uint8_t>(byte)) == TerminalDfa::kDead) continue;
    for (const List* list : lists) look(*list, byte);
  }
  const auto fewer = [](const auto& a, const auto& b) { return a.chars < b.chars; };
  if (counted_) {
    std::stable_sort(tokens->closing_.begin(), tokens->closing_.end(), fewer);
    std::stable_sort(inside.begin(), inside.end(), fewer);
  }
  tokens->sort_in(std::move(inside), counted_, words_);
  return tokens;
}

// From the list by characters.
void TerminalTables::Tokens::sort_in(std::vector<Inside> inside, bool counted, size_t words) {
  most_ = inside.empty() ? 0 : inside.back().chars;
  if (inside.size() <= kFewTokens) {
    listed_ = std::move(inside);
    return;
  }
  all_.resize(words);
  const int32_t masks = counted ? std::min(kMasks, most_) : 0;
  for (const Inside& one : inside) {
    while (std::cmp_less(masks_.size(), masks) && std::cmp_less(masks_.size(), one.chars)) {
      masks_.push_back(all_);
    }
    set_in_mask(all_, one.token);
    if (counted && one.chars >= masks) listed_.push_back(one);
  }
}

void TerminalTables::Tokens::allow_inside(int32_t room, std::span<uint32_t> mask) const {
  if (!all_.empty()) {
    if (room >= most_) return add_bits(all_, mask);
    if (std::cmp_less(room, masks_.size())) {
      return add_bits(masks_[static_cast<size_t>(room)], mask);
    }
    add_bits(masks_.back(), mask);
  }
  for (const Inside& one : listed_) {
    if (one.chars > room) break;
    set_in_mask(mask, one.token);
  }
}

size_t TerminalTables::Tokens::bytes() const {
  return (masks_.size() + 1) * all_.size() * sizeof(uint32_t) + listed_.size() * sizeof(Inside) +
         closing_.size() * sizeof(Closing);
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

Result<std::shared_ptr<const TerminalTables>> TerminalTableCache::get(
    Fuel& fuel, const Terminal& terminal, const std::shared_ptr<const TokenOrder>& order,
    size_t words) {
  Terminal form = terminal;
  const bool of_set = form.pattern.empty();
  if (of_set) {  // bounds are counted
    form.min = form.quoted ? 0 : 1;
    form.max = Terminal::kUnbounded;
  }
  form.excluded.clear();
  const std::string key = to_text(form);
  if (const auto found = known_.find(key); found != known_.end()) {
    if (auto tables = found->second.lock()) return tables;
  }
  RUDDER_TRY(TerminalDfa dfa, TerminalDfa::make(fuel, form));
  auto tables = std::make_shared<const TerminalTables>(std::move(dfa), of_set, order, words);
  std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
  known_[key] = tables;
  return tables;
}

}  // namespace rudder::constraint
