// A tap table on a backend under test, filled naively from programs and capture sets. Tests only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rudder/ops/comm.h"
#include "rudder/ops/tap_args.h"
#include "rudder/tap/capture.h"
#include "rudder/tap/program.h"
#include "rudder/testing/device_tensors.h"

namespace rudder::testing {

// One token's part in a tapped step, as TapBatch has it.
struct TapToken {
  int32_t row = 0;
  int32_t since_prompt = 0;
  int32_t slot = 0;
  int32_t capture_set = -1;
  int32_t capture_begin = 0;
};
inline constexpr int64_t kMaxTapTokens = 1024;  // of a batch

// Row i + 1 of the table is programs[i]. Latches and the ring are `num_slots` + 1 empty rows and
// `ring_elements` of NaN. Patterns are those of the heads that `rank` has.
ops::TapTable put_tap_table(Device& device, const tap::Geometry& geometry,
                            std::span<const tap::Program> programs,
                            std::span<const tap::CaptureSet> sets, int64_t num_slots,
                            int64_t ring_elements, ops::Rank rank = {});

// The tokens' entries are of the table as it is now.
ops::TapBatch put_tap_batch(Device& device, const ops::TapTable& table,
                            std::span<const TapToken> tokens);

}  // namespace rudder::testing
