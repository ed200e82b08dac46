// Computes the output that a choice must have, in the slow and obvious way: tokens by the
// executor's own reference, then text and stop strings over the whole output at once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rudder/engine/event.h"
#include "rudder/engine/request.h"
#include "rudder/steer/capture/spec.h"
#include "rudder/testing/fake_executor.h"

namespace rudder::testing {

struct SimExpected {
  std::vector<int32_t> tokens;  // up to and with the one that completed a stop
  std::string text;
  engine::FinishReason reason = engine::FinishReason::kLength;
  bool constraint_failed = false;
  std::string stop_reason;
  bool stopped_by_row = false;
  std::vector<uint64_t> hashes;  // by position (fake_model.h)
};

// `taps`: of the request, or null; `capture` likewise. `constraint_seeds`: of its constraints.
SimExpected expected_output(const engine::RequestParams& validated, const tap::SequenceTaps* taps,
                            const steer::capture::CaptureSpec* capture,
                            const std::vector<uint64_t>& constraint_seeds, int32_t max_len,
                            int32_t choice, const FakeOptions& options);

}  // namespace rudder::testing
