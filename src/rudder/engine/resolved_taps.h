// ResolvedTaps: what the steering and capture of a request become when it is submitted. Made on the
// submitting thread, so that the engine thread looks nothing up; the request has it until it ends.
#pragma once

#include <memory>

#include "rudder/base/result.h"
#include "rudder/engine/request.h"
#include "rudder/steer/capture/dispatcher.h"
#include "rudder/steer/program_table.h"
#include "rudder/tap/sequence_taps.h"

namespace rudder::engine {

struct ResolvedTaps {
  std::shared_ptr<const tap::SequenceTaps> sequence;           // null: no taps
  std::shared_ptr<const steer::capture::CaptureSpec> capture;  // null: nothing is captured
  std::shared_ptr<const lora::NamedAdapter> adapter;           // null: the model as it is

  // Rows of the executor's tables: the request waits for them.
  bool needs_rows() const { return sequence != nullptr || adapter != nullptr; }
};

// `captures` may be null. kUnavailable: a program or the capture's spec is not known any more.
// kInvalidArgument ("steering", "capture"): not even empty tables and buffers could hold it. Behind
// this check a request that waits for rows or for room to capture gets them in the end.
Result<ResolvedTaps> resolve_taps(const RequestParams& params, const steer::ProgramTable& programs,
                                  const steer::capture::Dispatcher* captures,
                                  const RequestLimits& limits);

}  // namespace rudder::engine
