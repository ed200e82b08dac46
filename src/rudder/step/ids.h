// The ids that plans and results carry.
#pragma once

#include <cstdint>
#include <vector>

#include "rudder/base/ids.h"

namespace rudder::step {

// A device-side record of per-sequence state: sampling parameters, block table, last sampled token.
using SlotId = StrongId<struct SlotTag, int32_t>;
// A page of KV cache: block_size tokens of every layer of a KV group.
using BlockId = int32_t;
inline constexpr BlockId kNoBlock = -1;
// The blocks of one sequence and KV group, in the order of its tokens; kNoBlock where the block was
// given back because every later token's window is past it.
using GroupTable = std::vector<BlockId>;
// Steps are numbered from 1 in launch order.
using StepId = uint64_t;

}  // namespace rudder::step
