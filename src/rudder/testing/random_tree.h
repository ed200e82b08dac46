// Random trees of drafts, for tests.
#pragma once

#include <algorithm>
#include <cstdint>

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

}  // namespace rudder::testing
