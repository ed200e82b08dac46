#include "rudder/constraint/mask_walk.h"

#include <algorithm>

#include "rudder/base/token_mask.h"

namespace rudder::constraint {
namespace {

constexpr int32_t kNowhere = -1;
constexpr int32_t kNotTried = -2;
// Rows that are tried before shapes are worth their keys.
constexpr uint64_t kPlainRows = 64;
constexpr size_t kMaxWalkStates = 4096;
// Of the rows on the way to one token: some 20 MiB.
constexpr size_t kMaxWalkItems = 1'000'000;
constexpr size_t kMaxKeptStates = 128;  // for the walks that follow; a kilobyte each
// Bytes that are tried from a state before it is worth trying all 256.
constexpr uint32_t kVisitsWorthLoops = 64;

void set_ids(const TokenTrie& trie, int32_t id, std::span<uint32_t> mask) {
  for (; id != TokenTrie::kNone; id = trie.next_same(id)) set_in_mask(mask, id);
}

}  // namespace

int32_t MaskWalk::state_of(EarleyParser& parser) {
  shape_.begin(0, 0);
  for (const EarleyParser::Item& item : parser.items()) shape_.add(item);
  for (const EarleyParser::Open& one : parser.open()) shape_.add(one);
  const auto next = static_cast<int32_t>(states_.size());
  const std::string_view key = shape_.finish(parser);
  if (!key.empty()) {
    const auto [known, is_new] = known_.try_emplace(std::string(key), next);
    if (!is_new) return known->second;
  }
  states_.emplace_back().next.fill(kNotTried);
  return next;
}

int32_t MaskWalk::step(EarleyParser& parser, size_t depth, int32_t from, uint8_t byte) {
  int32_t& known = states_[static_cast<size_t>(from)].next[byte];
  if (known != kNotTried) return known;
  // The rows up to here, as far as they are not there.
  for (; rows_ < depth; ++rows_) parser.advance(bytes_[rows_]);
  if (!parser.advance(byte)) {
    known = kNowhere;
    return kNowhere;
  }
  rows_ = depth + 1;
  const int32_t to = state_of(parser);
  states_[static_cast<size_t>(from)].next[byte] = to;  // states_ may have moved
  return to;
}

void MaskWalk::leave_to(EarleyParser& parser, size_t depth) {
  path_.resize(depth + 1);
  bytes_.resize(depth);
  if (rows_ <= depth) return;
  parser.pop_rows(static_cast<int32_t>(rows_ - depth));
  rows_ = depth;
}

void MaskWalk::find_loops(EarleyParser& parser) {
  const int32_t state = path_.back();
  const size_t depth = bytes_.size();
  uint64_t leaving = 0;
  bool returns = false;  // as the byte before it
  for (int byte = 0; byte < 0x80; ++byte) {
    const uint64_t group = uint64_t{1} << TokenTrie::group_of(static_cast<uint8_t>(byte));
    if (byte > 0 && !borders_[static_cast<size_t>(byte)]) {
      if (!returns) leaving |= group;
      continue;
    }
    returns = step(parser, depth, state, static_cast<uint8_t>(byte)) == state;
    if (!returns) leaving |= group;
    if (rows_ > depth) {
      parser.pop_rows(static_cast<int32_t>(rows_ - depth));
      rows_ = depth;
    }
  }
  Inside seen;
  if (!characters_return(parser, state, {}, seen)) leaving |= TokenTrie::kBeyondAscii;
  states_[static_cast<size_t>(state)].loops = ~leaving;
}

bool MaskWalk::characters_return(EarleyParser& parser, int32_t state, Utf8State utf8,
                                 Inside& seen) {
  const size_t depth = bytes_.size();
  bool all = true;
  Utf8State before;  // what the byte before it leads to
  for (int byte = 0x80; byte < 256 && all; ++byte) {
    Utf8State next = utf8;
    if (!next_utf8(next, static_cast<uint8_t>(byte))) continue;
    // Lead bytes lead to several states, continuations to one; none goes from nothing to nothing.
    const bool is_first = byte == 0x80 || byte == utf8.first || next != before;
    before = next;
    if (!is_first && !borders_[static_cast<size_t>(byte)]) continue;
    const int32_t to = step(parser, depth, path_.back(), static_cast<uint8_t>(byte));
    const auto known =
        std::find_if(seen.begin(), seen.end(), [&](const auto& one) { return one.first == next; });
    if (to == kNowhere || next.left == 0) {
      all = to == state;
    } else if (known != seen.end()) {
      all = known->second == to;
    } else {
      seen.emplace_back(next, to);
      path_.push_back(to);
      bytes_.push_back(static_cast<uint8_t>(byte));
      all = characters_return(parser, state, next, seen);
    }
    leave_to(parser, depth);
  }
  return all;
}

void MaskWalk::forget_states() {
  known_ = {};
  states_ = {};
  base_.reset();
}

void MaskWalk::keep_base(EarleyParser& parser, const TokenTrie& trie,
                         std::span<const uint32_t> mask) {
  if (base_) return;
  if (states_.size() > kMaxKeptStates) forget_states();
  base_ = {.trie = &trie, .state = state_of(parser), .mask = {mask.begin(), mask.end()}};
}

void MaskWalk::step_all(EarleyParser& parser) {
  const int32_t state = path_.back();
  const size_t depth = bytes_.size();
  for (int byte = 0; byte < 256; ++byte) {
    std::array<int32_t, 256>& next = states_[static_cast<size_t>(state)].next;
    const auto at = static_cast<size_t>(byte);
    if (byte > 0 && !borders_[at]) {
      next[at] = next[at - 1];
      continue;
    }
    const int32_t to = step(parser, depth, state, static_cast<uint8_t>(byte));
    if (depth == 0 && to == base_->state && to != state) {
      path_.push_back(to);
      bytes_.push_back(static_cast<uint8_t>(byte));
      step_all(parser);
    }
    leave_to(parser, depth);
  }
}

template <typename Over>
std::optional<uint64_t> MaskWalk::run_from_base(EarleyParser& parser, const TokenTrie& trie,
                                                std::span<uint32_t> mask, const Over& over) {
  path_.assign(1, state_of(parser));
  bytes_.clear();
  rows_ = 0;
  step_all(parser);
  const std::array<int32_t, 256>& here = states_[static_cast<size_t>(path_[0])].next;
  const std::array<int32_t, 256>& there = states_[static_cast<size_t>(base_->state)].next;
  const std::vector<TokenTrie::Node>& nodes = trie.nodes();
  std::vector<size_t> others;  // nodes of first bytes that lead elsewhere
  size_t num_others = 0;
  for (size_t at = 0; at < nodes.size(); at = nodes[at].skip) {
    const uint8_t byte = nodes[at].byte;
    if (here[byte] == there[byte] && here[byte] != kNotTried) continue;
    others.push_back(at);
    num_others += nodes[at].skip - at;
  }
  if (2 * num_others > nodes.size()) {
    base_.reset();
    return std::nullopt;
  }
  std::vector<uint32_t> same = base_->mask;
  for (const size_t at : others) {
    for (const int32_t id : trie.ids_below(at)) clear_in_mask(same, id);
  }
  for (size_t i = 0; i < same.size(); ++i) mask[i] |= same[i];
  uint64_t tried = nodes.size() - num_others;
  for (size_t at : others) {
    const size_t end = nodes[at].skip;
    while (at < end && !over()) tried += run_by_shape(parser, trie, mask, &at, end, over);
  }
  return tried;
}

// From the node `*at` on, until there are too many states.
template <typename Over>
uint64_t MaskWalk::run_by_shape(EarleyParser& parser, const TokenTrie& trie,
                                std::span<uint32_t> mask, size_t* at, size_t end,
                                const Over& over) {
  const std::vector<TokenTrie::Node>& nodes = trie.nodes();
  if (states_.size() > kMaxKeptStates) forget_states();
  const size_t num_before = states_.size();
  path_.assign(1, state_of(parser));
  bytes_.clear();
  rows_ = 0;
  // The way to the node.
  std::vector<uint8_t> way(nodes[*at].depth);
  for (size_t i = *at, left = way.size(); left > 0;) {
    const TokenTrie::Node& node = nodes[--i];
    if (node.depth + size_t{1} == left && node.skip > *at) way[--left] = node.byte;
  }
  for (const uint8_t byte : way) {
    path_.push_back(step(parser, bytes_.size(), path_.back(), byte));
    bytes_.push_back(byte);
  }
  uint64_t tried = 0;
  while (*at < end && !over() && states_.size() - num_before < kMaxWalkStates) {
    const TokenTrie::Node& node = nodes[*at];
    leave_to(parser, node.depth);
    ++tried;
    State& here = states_[static_cast<size_t>(path_.back())];
    if (++here.visits == kVisitsWorthLoops) find_loops(parser);
    const uint64_t groups = trie.groups(*at);
    const bool is_text = (groups & TokenTrie::kBeyondAscii) == 0 || trie.is_utf8(*at);
    if (is_text && (groups & ~states_[static_cast<size_t>(path_.back())].loops) == 0) {
      for (const int32_t id : trie.ids_below(*at)) set_in_mask(mask, id);
      *at = node.skip;
      continue;
    }
    const int32_t to = step(parser, node.depth, path_.back(), node.byte);
    if (to == kNowhere) {
      *at = node.skip;
      continue;
    }
    path_.push_back(to);
    bytes_.push_back(node.byte);
    set_ids(trie, node.id, mask);
    ++*at;
  }
  leave_to(parser, 0);
  if (states_.size() > kMaxKeptStates) forget_states();
  return tried;
}

uint64_t MaskWalk::run(EarleyParser& parser, const TokenTrie& trie, std::span<uint32_t> mask,
                       uint64_t max_steps) {
  const std::vector<TokenTrie::Node>& nodes = trie.nodes();
  const uint64_t first_step = parser.steps();
  const size_t first_items = parser.num_items();
  const auto over = [&] {
    if (parser.num_items() - first_items > kMaxWalkItems) parser.give_up();
    return parser.overflowed() || parser.steps() - first_step > max_steps;
  };
  if (base_ && base_->trie == &trie) {
    const std::optional<uint64_t> tried = run_from_base(parser, trie, mask, over);
    if (tried) return *tried;
  }
  uint64_t tried = 0;
  size_t at = 0;
  size_t rows = 0;
  const auto back_to = [&](size_t depth) {
    if (rows <= depth) return;
    parser.pop_rows(static_cast<int32_t>(rows - depth));
    rows = depth;
  };
  while (at < nodes.size() && tried < kPlainRows && !over()) {
    const TokenTrie::Node& node = nodes[at];
    back_to(node.depth);
    ++tried;
    const bool is_leaf = node.skip == at + 1;
    const bool goes_on = is_leaf ? parser.may_advance(node.byte) : parser.advance(node.byte);
    if (goes_on) {
      if (!is_leaf) ++rows;
      set_ids(trie, node.id, mask);
    }
    at = goes_on ? at + 1 : node.skip;
  }
  back_to(0);
  while (at < nodes.size() && !over())
    tried += run_by_shape(parser, trie, mask, &at, nodes.size(), over);
  return tried;
}

}  // namespace rudder::constraint
