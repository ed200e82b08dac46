// KV groups: how the layers of a model keep keys and values. The layers of a group have one window
// and one block table; all groups take their blocks from one pool. A block of a group is
// `block_size` tokens of the group's layers, one contiguous piece of memory, and has the same bytes
// in every group. Normative text: docs/contracts/kv.md.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "rudder/base/check.h"

namespace rudder::step {

inline constexpr int32_t kMaxKvGroups = 8;

struct KvGroup {
  // 0: a token sees all tokens before it. Else the token at position p sees (p - window, p], and
  // blocks that lie wholly before that are given back while the sequence runs.
  int32_t window = 0;
  // How many layers a block has room for, one behind another: the device counts KV in blocks of one
  // layer, of which block b of the group is b * layers to (b + 1) * layers - 1.
  int32_t layers = 1;

  bool operator==(const KvGroup&) const = default;

  // The first position that a token at `position` sees.
  int32_t first_visible(int32_t position) const {
    return window > 0 ? std::max(0, position - window + 1) : 0;
  }
};

// Between one and kMaxKvGroups of them.
class KvGroups {
 public:
  constexpr KvGroups() = default;
  constexpr explicit KvGroups(std::span<const KvGroup> groups)
      : count_(static_cast<int32_t>(groups.size())) {
    RUDDER_CHECK(count_ > 0 && count_ <= kMaxKvGroups, "{} KV groups", count_);
    std::ranges::copy(groups, groups_.begin());
  }
  constexpr int32_t size() const { return count_; }
  constexpr const KvGroup& operator[](size_t i) const { return groups_[i]; }
  constexpr const KvGroup* begin() const { return groups_.data(); }
  constexpr const KvGroup* end() const { return groups_.data() + count_; }
  constexpr bool operator==(const KvGroups&) const = default;

 private:
  std::array<KvGroup, kMaxKvGroups> groups_ = {};
  int32_t count_ = 1;  // by default one group of layers that see everything
};

constexpr int64_t blocks_of(int64_t tokens, int32_t block_size) {
  return (tokens + block_size - 1) / block_size;
}

// Blocks that a group's table names at most while a sequence of `tokens` tokens runs `chunk` of
// them at a time.
constexpr int64_t blocks_held(const KvGroup& group, int32_t block_size, int64_t tokens,
                              int64_t chunk) {
  const int64_t all = blocks_of(tokens, block_size);
  if (group.window == 0) return all;
  // The window may begin, and the chunk may end, inside a block.
  return std::min(all, blocks_of(int64_t{group.window} - 1 + chunk - 1, block_size) + 1);
}

// Of all groups, a token at a time: what a lone sequence of that length cannot do without.
constexpr int64_t least_blocks(const KvGroups& groups, int32_t block_size, int64_t tokens) {
  int64_t total = 0;
  for (const KvGroup& group : groups) total += blocks_held(group, block_size, tokens, 1);
  return total;
}

// The longest sequence, of at most `most` tokens, that `num_blocks` blocks hold.
constexpr int32_t longest_sequence(const KvGroups& groups, int32_t block_size, int64_t num_blocks,
                                   int32_t most) {
  int32_t fits = 0;
  int32_t too_long = most + 1;
  while (too_long - fits > 1) {
    const int32_t middle = fits + (too_long - fits) / 2;
    (least_blocks(groups, block_size, middle) <= num_blocks ? fits : too_long) = middle;
  }
  return fits;
}

}  // namespace rudder::step
