// What a capture set asks of a layer's attention patterns, as the device reads it: on a rank of a
// group, of the heads that it has. Plain data; this header is C++17, because nvcc reads it too.
#pragma once

#include <cstdint>

#include "rudder/tap/tap_op.h"

namespace rudder::ops {

struct PatternEntry {
  int32_t offset = -1;    // in a token's record, in units of kCaptureAlign; -1: nothing is asked
  int32_t keys = 0;       // of a row
  int32_t first_row = 0;  // at the offset, in rows: those of other ranks lie in front
  uint32_t heads[tap::kMaxPatternHeads / 32] = {};  // a bit a head

  bool has(int32_t head) const { return ((heads[head / 32] >> (head % 32)) & 1U) != 0; }
};
inline constexpr int64_t kPatternWords = sizeof(PatternEntry) / sizeof(int32_t);

// Elements of the ring for each pair of TapTable::pattern_sums.
inline constexpr int64_t kPatternSumElements = 64;

}  // namespace rudder::ops
