// One step of a tile's attention, as its weighting sees it (attend.h). Included by
// kernels_<isa>.cpp through simd.h.
#pragma once

#include "rudder/cpu/kernels.h"
#include "rudder/cpu/simd.h"

namespace rudder::cpu::RUDDER_CPU_ISA {

inline constexpr int kGroup = kPanelWidth;      // key positions of one panel
inline constexpr int kGroups = 4;               // panels of one step
inline constexpr int kSpan = kGroup * kGroups;  // key positions of one step

struct TileStep {
  int32_t begin = 0;  // first position of the step, a multiple of kSpan
  int lo = 0;         // groups [lo, hi) are seen by some row; steps before and behind it have none
  int hi = 0;
  float* scores = nullptr;       // [rows, kSpan] q . k, not scaled
  std::byte* weights = nullptr;  // [kGroups] row tiles, for the product with the values
  float* sums = nullptr;         // [rows, head_dim] weighted values of the steps before
};

// Writes `hidden` over the positions of a group that row r does not see; false when it sees them
// all.
inline bool hide(const AttentionTile& tile, int r, int32_t position, float hidden, float* values) {
  const int32_t first = tile.first[r];
  const int32_t last = tile.last[r];
  if (position >= first && position + kGroup - 1 <= last) return false;
  for (int i = 0; i < kGroup; ++i) {
    if (position + i < first || position + i > last) values[i] = hidden;
  }
  return true;
}

// Weights of row r and group g of the step, rounded as products take them.
template <Element kElement>
void store_weights(const TileStep& step, int r, int g, Vec weights) {
  std::byte* to = step.weights + g * kTileBytes + r * kStepBytes;
  if constexpr (kElement == Element::kBf16) {
    store_bf16(reinterpret_cast<uint16_t*>(to), weights);
  } else {
    store(reinterpret_cast<float*>(to), weights);
  }
}

}  // namespace rudder::cpu::RUDDER_CPU_ISA
