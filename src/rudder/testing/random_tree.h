// Random trees of drafts, for tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "rudder/base/philox.h"
#include "rudder/step/draft_tree.h"

namespace rudder::testing {

// Of `size` drafts: bushy ones, deep ones and some between.
inline step::DraftTree random_tree(uint64_t seed, int32_t size) {
  step::DraftTree tree;
  const auto reach = static_cast<int32_t>(1 + philox_u64(seed, 0) % 8);
  for (int32_t row = 1; row <= size; ++row) {
    const int32_t first = std::max(0, row - reach);
    const auto choices = static_cast<uint64_t>(row - first);
    const uint64_t draw = philox_u64(seed, static_cast<uint64_t>(row));
    tree.add(first + static_cast<int32_t>(draw % choices));
  }
  return tree;
}

// The tokens of the first `count` drafts of a tree, where `right` comes: behind each right one the
// first for which hits(row) is true is right, and its siblings are wrong; others are by chance.
// below(n) draws a number.
template <typename Below, typename Hits>
std::vector<int32_t> random_tree_guess(const step::DraftTree& tree, int32_t count,
                                       std::span<const int32_t> right, int32_t vocab_size,
                                       Below below, Hits hits) {
  std::vector<int32_t> tokens;
  std::vector<bool> is_right = {true};  // by row
  for (int32_t row = 1; row <= std::min(count, tree.size()); ++row) {
    const auto depth = static_cast<size_t>(tree.depth(row)) - 1;
    const auto is_taken = [&](int32_t token) {
      for (int32_t other = 1; other < row; ++other) {
        if (tree.parent(other) != tree.parent(row)) continue;
        if (tokens[static_cast<size_t>(other - 1)] == token) return true;
      }
      return false;
    };
    const bool may_hit = is_right[static_cast<size_t>(tree.parent(row))] && depth < right.size();
    const bool is_hit = may_hit && !is_taken(right[depth]) && hits(row);
    int32_t token = is_hit ? right[depth] : below(vocab_size);
    while (!is_hit && (is_taken(token) || (may_hit && token == right[depth]))) {
      token = (token + 1) % vocab_size;
    }
    tokens.push_back(token);
    is_right.push_back(is_hit);
  }
  return tokens;
}

}  // namespace rudder::testing
