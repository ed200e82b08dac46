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
constexpr size_t kWorthLoops = 16;  // nodes of a subtree
// Kept of what is worked out late.
constexpr size_t kMaxLateNear = 96;
constexpr size_t kMaxLateFar = 1024;

void add_bits(const std::vector<uint32_t>& bits, std::span<uint32_t> mask) {
  for (size_t i = 0; i < bits.size(); ++i) mask[i] |= bits[i];
}

}  // namespace

TerminalTables::TerminalTables(Fuel& fuel, TerminalDfa dfa, bool counted,
                               std::shared_ptr<const TokenOrder> order, size_t words)
    : dfa_(std::move(dfa)), counted_(counted), order_(std::move(order)), words_(words) {
  bytes_ = dfa_.bytes();
  size_t looked_at = 0;
  if (counted_) {
    for (size_t state = 0; state < dfa_.size(); ++state) {
      kinds_.push_back(static_cast<int32_t>(state));
      near_.push_back(make(static_cast<State>(state), order_->trie(), looked_at));
      bytes_ += near_.back()->bytes();
    }
    fuel.burn(static_cast<int64_t>(looked_at));
    made_bytes_ = bytes_;
    return;
  }
  kinds_ = dfa_.kinds(TokenOrder::kShort);
  far_.resize(dfa_.size());
  near_.resize(static_cast<size_t>(*std::max_element(kinds_.begin(), kinds_.end())) + 1);
  const auto most = static_cast<size_t>(fuel.left_ahead());
  for (size_t state = 0; state < kinds_.size() && looked_at < most; ++state) {
    std::shared_ptr<const Tokens>& near = near_[static_cast<size_t>(kinds_[state])];
    if (near != nullptr) continue;
    near = make(static_cast<State>(state), order_->short_tokens(), looked_at);
    bytes_ += near->bytes();
    looked_at += words_ / 16;  // its mask
  }
  fuel.burn_ahead(static_cast<int64_t>(looked_at));
  bytes_ += (near_.size() + far_.size()) * sizeof(near_[0]);
  made_bytes_ = bytes_;
  // A list of tokens, or a mask where they are many.
  const size_t far = std::min(words * sizeof(uint32_t), order_->long_tokens().nodes().size());
  bytes_ += std::min(near_.size(), kMaxLateNear) * words * sizeof(uint32_t) +
            std::min(far_.size(), kMaxLateFar) * far / 4;
}

TerminalTables::View TerminalTables::tokens(State state, uint64_t& looked_at) const {
  const auto at = static_cast<size_t>(state);
  const auto kind = static_cast<size_t>(kinds_[at]);
  if (counted_) return {.near = near_[kind], .far = nullptr};
  const auto find = [&](std::shared_ptr<const Tokens>& known, const TokenTrie& trie, Late& late,
                        size_t most) {
    {
      const std::lock_guard lock(mutex_);
      if (known != nullptr) return known;
    }
    // Without the lock: other threads go on meanwhile, or make the same.
    size_t looked_at_now = 0;
    std::shared_ptr<const Tokens> made = make(state, trie, looked_at_now);
    looked_at += looked_at_now;
    const std::lock_guard lock(mutex_);
    if (known != nullptr) return made;
    if (late.size() == most) {
      *late.front() = nullptr;
      late.pop_front();
    }
    late.push_back(&known);
    known = made;
    return made;
  };
  return {.near = find(near_[kind], order_->short_tokens(), late_near_, kMaxLateNear),
          .far = find(far_[at], order_->long_tokens(), late_far_, kMaxLateFar)};
}

std::shared_ptr<const TerminalTables::Tokens> TerminalTables::make(State state,
                                                                   const TokenTrie& trie,
                                                                   size_t& looked_at) const {
  struct Reached {
    State state = TerminalDfa::kDead;
    int32_t chars = 0;
  };
  auto tokens = std::make_shared<Tokens>();
  std::vector<Tokens::Inside> inside;
  std::vector<Reached> path(1,
                            {.state = state, .chars = 0});  // from the start to the node's parent
  std::unordered_map<State, uint64_t> loops;
  // Where characters are not counted, many tokens are a mask as soon as they are.
  const auto take = [&](int32_t id, int32_t chars) {
    if (!tokens->all_.empty()) return set_in_mask(tokens->all_, id);
    inside.push_back({.chars = chars, .token = id});
    if (counted_ || inside.size() <= kFewTokens) return;
    tokens->all_.resize(words_);
    for (const Tokens::Inside& one : inside) set_in_mask(tokens->all_, one.token);
    inside.clear();
  };
  const std::vector<TokenTrie::Node>& nodes = trie.nodes();
  for (size_t at = 0; at < nodes.size();) {
    const TokenTrie::Node& node = nodes[at];
    ++looked_at;
    path.resize(node.depth + size_t{1});
    const Reached from = path.back();
    // Where characters are not counted, a subtree of bytes that lead back here is taken at once.
    if (!counted_ && node.skip - at >= kWorthLoops) {
      const auto [known, is_new] = loops.try_emplace(from.state, 0);
      if (is_new) known->second = loops_of(from.state);
      const uint64_t groups = trie.groups(at);
      const bool is_text = (groups & TokenTrie::kBeyondAscii) == 0 || trie.is_utf8(at);
      if (is_text && (groups & ~known->second) == 0) {
        for (const int32_t id : trie.ids_below(at)) take(id, 0);
        at = node.skip;
        continue;
      }
    }
    const State to = dfa_.next(from.state, node.byte);
    if (to == TerminalDfa::kDead || to == TerminalDfa::kClosed) {
      if (to == TerminalDfa::kClosed) add_closing(trie, at, from.chars, *tokens);
      at = node.skip;
      continue;
    }
    path.push_back({.state = to, .chars = from.chars + (dfa_.completes(from.state, to) ? 1 : 0)});
    const int32_t chars = path.back().chars + dfa_.missing(to);
    for (int32_t id = node.id; id != TokenTrie::kNone; id = trie.next_same(id)) {
      take(id, chars);
    }
    ++at;
  }
  const auto fewer = [](const auto& a, const auto& b) { return a.chars < b.chars; };
  if (counted_) {
    std::stable_sort(tokens->closing_.begin(), tokens->closing_.end(), fewer);
    std::stable_sort(inside.begin(), inside.end(), fewer);
  }
  tokens->sort_in(std::move(inside), counted_, words_);
  return tokens;
}

// Groups of bytes (TokenTrie) that all lead from the state back to it; those beyond ASCII: as
// characters of UTF-8.
uint64_t TerminalTables::loops_of(State state) const {
  uint64_t leaving = 0;
  for (int byte = 0; byte < 0x80; ++byte) {
    if (dfa_.next(state, static_cast<uint8_t>(byte)) == state) continue;
    leaving |= uint64_t{1} << TokenTrie::group_of(static_cast<uint8_t>(byte));
  }
  Inside seen;
  if (!characters_return(state, state, {}, seen)) leaving |= TokenTrie::kBeyondAscii;
  return ~leaving;
}

// Whether all characters beyond ASCII lead to `back`; `at` is inside of one, or `back` itself.
bool TerminalTables::characters_return(State back, State at, Utf8State utf8, Inside& seen) const {
  for (int byte = 0x80; byte < 256; ++byte) {
    Utf8State next = utf8;
    if (!next_utf8(next, static_cast<uint8_t>(byte))) continue;
    const State to = dfa_.next(at, static_cast<uint8_t>(byte));
    if (to == TerminalDfa::kDead || (next.left == 0 && to != back)) return false;
    if (next.left == 0) continue;
    const auto known =
        std::find_if(seen.begin(), seen.end(), [&](const auto& one) { return one.first == next; });
    if (known != seen.end()) {
      if (known->second != to) return false;
      continue;
    }
    seen.emplace_back(next, to);
    if (!characters_return(back, to, next, seen)) return false;
  }
  return true;
}

// The tokens whose closing quote is the node `quote`, behind `chars` characters.
void TerminalTables::add_closing(const TokenTrie& trie, size_t quote, int32_t chars,
                                 Tokens& tokens) const {
  const std::vector<TokenTrie::Node>& nodes = trie.nodes();
  std::string after;
  for (size_t at = quote; at < nodes[quote].skip; ++at) {
    const TokenTrie::Node& node = nodes[at];
    if (at > quote) {
      after.resize(node.depth - nodes[quote].depth - size_t{1});
      after.push_back(static_cast<char>(node.byte));
    }
    if (node.id == TokenTrie::kNone) continue;
    const int32_t index = order_->after_quote(after);
    for (int32_t id = node.id; id != TokenTrie::kNone; id = trie.next_same(id)) {
      tokens.closing_.push_back({.chars = chars, .after = index, .token = id});
    }
  }
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

ExcludedValues::ExcludedValues(const std::vector<std::string>& values)
    : nodes_(values.empty() ? 0 : 1) {
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
  form.unique = false;
  form.is_key = false;
  const std::string key = to_text(form);
  if (const auto found = known_.find(key); found != known_.end()) {
    if (auto tables = found->second.lock()) return tables;
  }
  RUDDER_TRY(TerminalDfa dfa, TerminalDfa::make(fuel, form));
  // What tells states apart goes over all their entries.
  const auto entries = static_cast<int64_t>(dfa.bytes() / sizeof(TerminalDfa::State));
  const Held held(
      fuel, entries * int64_t{sizeof(TerminalDfa::State)} + static_cast<int64_t>(dfa.size()) * 64);
  if (!of_set) fuel.burn(entries * int64_t{TokenOrder::kShort} / 2);
  if (fuel.out()) return tl::unexpected(fuel.error());
  auto tables = std::make_shared<const TerminalTables>(fuel, std::move(dfa), of_set, order, words);
  std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
  known_[key] = tables;
  return tables;
}

}  // namespace rudder::constraint
