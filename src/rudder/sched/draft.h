// Draft: a guess at what follows a sequence's last token, as a proposer makes it. Plain data.
#pragma once

#include <cstdint>
#include <vector>

#include "rudder/step/draft_tree.h"

namespace rudder::sched {

// What a draft may be.
struct DraftAsk {
  int32_t most = 0;         // tokens
  bool takes_tree = false;  // else the draft must be a chain
};

struct Draft {
  std::vector<int32_t> tokens;
  step::DraftTree tree = {};  // which of them follow which; empty: a chain
  // Of each token, how likely it is where what it follows has come, as its proposer counts. Empty:
  // the proposer does not say.
  std::vector<float> odds = {};

  void clear() {
    tokens.clear();
    tree = {};
    odds.clear();
  }
};

}  // namespace rudder::sched
