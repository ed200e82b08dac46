// The values of GGUF blocks whose codes name points of a grid (block_grids.h), and of NVFP4, in the
// order of operations of gguf.quants. Each of one block. Pure functions; any thread.
#pragma once

#include <cstddef>

namespace rudder::weights {

void expand_iq2_xxs(const std::byte* block, float* out);
void expand_iq2_xs(const std::byte* block, float* out);
void expand_iq2_s(const std::byte* block, float* out);
void expand_iq3_xxs(const std::byte* block, float* out);
void expand_iq3_s(const std::byte* block, float* out);
void expand_iq1_s(const std::byte* block, float* out);
void expand_iq1_m(const std::byte* block, float* out);
void expand_nvfp4(const std::byte* block, float* out);

}  // namespace rudder::weights
