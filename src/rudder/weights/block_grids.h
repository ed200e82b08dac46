// The points on which types of GGUF blocks with fewer than four bits put several numbers at once
// (ggml-common.h), each as the indices of its numbers: two bits for each of eight, into {8, 25, 43}
// (IQ2) or {-1, 0, 1} (IQ1); three bits for each of four, into {4, 12, ... 52, 62} (IQ3_XXS) or
// {1, 3, ... 15} (IQ3_S). Constant data.
#pragma once

#include <cstdint>

namespace rudder::weights {

extern const uint16_t kIq2XxsGrid[256];
extern const uint16_t kIq2XsGrid[512];
extern const uint16_t kIq2SGrid[1024];
extern const uint16_t kIq3XxsGrid[256];
extern const uint16_t kIq3SGrid[512];
extern const uint16_t kIq1SGrid[2048];

}  // namespace rudder::weights
