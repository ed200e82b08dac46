// Rounds numbers to the blocks of GGUF files (block_type.h), as ggml's reference quantisers do
// (ggml-quants.c, quantize_row_*_ref): Q4_0, Q5_0 and Q8_0 to nearest, Q4_K and Q6_K by a search
// for the scales and minima with the least squared error. Called by what writes such files. Pure
// functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rudder/weights/block_type.h"

namespace rudder::weights {

// `count` blocks, one behind another: [count * type.values] numbers.
using RoundBlocks = void (*)(const float* values, int64_t count, std::byte* out);

// F32, F16, BF16, Q4_0, Q5_0, Q8_0, Q4_K and Q6_K; null for types that are read only.
RoundBlocks block_rounder(const BlockType& type);

}  // namespace rudder::weights
