// The path of one token of a tree of drafts through its sequence's part of a step
// (AttentionBatch.ancestors): which key stands at a position of it, for attention.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

#include "rudder/ops/args.h"

namespace rudder::cpu {

struct TreePath {
  int64_t base = std::numeric_limits<int64_t>::max();  // KV before the part; all, without a tree
  std::array<uint8_t, 64> tokens = {};                 // of the part: at base, base + 1, ...
  int64_t count = 0;

  bool empty() const { return count == 0; }
  int64_t last() const { return base + count - 1; }  // its own position
  // Where the key of a position lies in the sequence's blocks, counted in tokens.
  int64_t offset_of(int64_t position) const {
    return position < base ? position : base + tokens[static_cast<size_t>(position - base)];
  }
};

// Of a token whose sequence has `base` tokens in KV before the step; empty where it is in no tree.
inline TreePath path_of(const ops::AttentionBatch& batch, int64_t token, int64_t base) {
  TreePath path;
  uint64_t ancestors = batch.ancestors_of(token);
  if (ancestors == 0) return path;
  path.base = base;
  for (; ancestors != 0; ancestors &= ancestors - 1) {
    path.tokens[static_cast<size_t>(path.count++)] =
        static_cast<uint8_t>(std::countr_zero(ancestors));
  }
  return path;
}

}  // namespace rudder::cpu
