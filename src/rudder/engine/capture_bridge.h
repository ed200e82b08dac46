// CaptureBridge: between the engine and the capture dispatcher. Opens a capture for each choice
// that asks for one, hands the rows of committed steps to the dispatcher, and posts what the
// dispatcher says of a choice into the engine's mailbox. Owned by EngineCore; the engine thread's
// alone.
#pragma once

#include <memory>
#include <vector>

#include "rudder/engine/mailbox.h"
#include "rudder/engine/open_request.h"
#include "rudder/engine/request_table.h"
#include "rudder/sched/sequence.h"
#include "rudder/steer/capture/dispatcher.h"
#include "rudder/step/result.h"

namespace rudder::engine {

class CaptureBridge {
 public:
  // `dispatcher` may be null: then no request captures. Both outlive this, and the mailbox the
  // dispatcher, whose threads post to it.
  CaptureBridge(steer::capture::Dispatcher* dispatcher, Mailbox* mailbox)
      : mailbox_(mailbox), dispatcher_(dispatcher) {}

  steer::capture::Dispatcher* dispatcher() const { return dispatcher_; }

  // Opens the captures of a request that is about to be scheduled.
  void begin(OpenRequest& request);
  // `captured`: the rows of `result` that count. Each belongs to a choice in `requests`.
  void push(const step::StepResult& result, const std::vector<sched::CapturedSequence>& captured,
            const RequestTable& requests);
  // No more rows come for a choice that captures; without `publish` nothing of it is published.
  void end(const OpenChoice& choice, bool publish);

 private:
  Mailbox* const mailbox_;
  steer::capture::Dispatcher* const dispatcher_;
  std::vector<steer::capture::CaptureId> by_seq_;  // scratch
};

}  // namespace rudder::engine
