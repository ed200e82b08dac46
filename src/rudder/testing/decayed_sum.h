// DecayedSum: a toy mixer with a recurrent state. Each head projects a token to a value and gives
// the sum of the values so far, in which each step back counts less by the head's decay. It
// computes on the host, in stream order where the device is a wrapper (forwarding_ops.h). So the
// tests of what sequences keep (docs/contracts/cache.md) run on a model without a product's
// kernels. No config.json names it. Tests only.
//
// Its state: how many tokens the sums are of (an i32 on a line of its own), then the sums, f32. The
// row that it keeps of a token is its values, f32.
#pragma once

#include <cstdint>
#include <memory>

#include "rudder/model/custom_mixer.h"

namespace rudder::testing {

// What it does wrong, for tests of tests.
enum class SumFault : uint8_t {
  kNone,
  kMovesOverDrafts,  // the state, over tokens that may be wrong
  kForgetsAccepted,  // drafts that were right
};

std::shared_ptr<const model::MixerKind> make_decayed_sum(int32_t num_heads, int32_t head_dim,
                                                         SumFault fault = SumFault::kNone);

}  // namespace rudder::testing
