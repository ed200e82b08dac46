// TreePasses: how large the passes are in which a draft head guesses a tree (model_proposer.h), one
// a depth.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "rudder/step/draft_tree.h"

namespace rudder::exec {

// Of one sequence. Without a tree there are none.
struct TreePasses {
  int32_t max_tokens = 0;    // of a pass: guesses that are followed by others, of all depths so far
  int32_t max_rows = 0;      // of logits: those of the last of these depths
  int32_t num_feedback = 1;  // rows that guesses go on from, one of the sequence's last token

  TreePasses() = default;
  explicit TreePasses(const step::DraftTree& tree) : num_feedback(std::popcount(tree.parents())) {
    max_tokens = num_feedback - 1;
    for (int32_t depth = 1; depth < tree.depth(); ++depth) {
      const uint64_t rows = tree.down_to(depth) & ~tree.down_to(depth - 1);
      max_rows = std::max(max_rows, std::popcount(tree.parents() & rows));
    }
  }
};

}  // namespace rudder::exec
