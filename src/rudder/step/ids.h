// The ids that plans and results carry.
#pragma once

#include <cstdint>

#include "rudder/base/ids.h"

namespace rudder::step {

// A device-side row of per-sequence state: sampling parameters, block table, last sampled token.
using SlotId = StrongId<struct SlotTag, int32_t>;
// A page of KV cache: block_size tokens of every layer.
using BlockId = int32_t;
// Steps are numbered from 1 in launch order.
using StepId = uint64_t;

}  // namespace rudder::step
