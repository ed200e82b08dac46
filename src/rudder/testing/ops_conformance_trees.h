// The part of the conformance suite for trees of drafts (ops_conformance.h), which runs where the
// backend takes them.
#pragma once

#include <string>
#include <vector>

#include "rudder/testing/ops_conformance_attention.h"

namespace rudder::testing {

class OpsTrees : public OpsAttention {
 protected:
  AttentionShape tree_shape();  // neither a window nor a gate
  // By token, each follows one before it; the first follows none: -1.
  std::vector<int32_t> random_parents(int64_t count);
  // A sequence of its own: the first `base` tokens of `from`, those of `path` behind them, and
  // `more` random ones.
  Sequence sequence_of(Layer& layer, const Sequence& from, int64_t base,
                       const std::vector<int64_t>& path, int64_t more = 0);
};

}  // namespace rudder::testing
