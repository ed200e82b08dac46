// Delivery: from what a committed step gave a choice to the choice's events, and the one place
// where choices and requests end. Owned by EngineCore; the engine thread's alone.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "rudder/base/clock.h"
#include "rudder/engine/capture_bridge.h"
#include "rudder/engine/constraint_table.h"
#include "rudder/engine/event.h"
#include "rudder/engine/metrics.h"
#include "rudder/engine/request_table.h"
#include "rudder/engine/tap_queue.h"
#include "rudder/sched/scheduler.h"

namespace rudder::engine {

class Delivery {
 public:
  // What holds something of a choice until it ends. All of it outlives the Delivery.
  struct Parts {
    const Clock* clock;
    const std::vector<int32_t>* eos_ids;  // of the model
    sched::Scheduler* scheduler;
    RequestTable* requests;
    ConstraintTable* constraints;
    TapQueue* taps;
    CaptureBridge* captures;
    EngineMetrics* metrics;
  };
  explicit Delivery(const Parts& parts) : parts_(parts) {}

  // The output of a choice that is open. What making or sending its events throws ends that choice
  // or, where it was the sink, that request (engine.E5).
  void deliver(const sched::SequenceOutput& output, int64_t now_us);
  void deliver(CaptureNews news);
  // Ends the choices whose constraints have failed and the requests whose sinks have thrown, behind
  // the events of the tokens that they got. What is in flight for them is dropped.
  void end_failed();
  // Ends each choice of a request that never was open.
  void refuse(const Submission& submission, const Error& error);
  // Ends the request for what was thrown while the engine worked for it.
  void fail_request(RequestId id, const Error& error);
  // Ends all choices of the request; nothing of its captures is published. An unknown id does
  // nothing: the request has finished.
  void end_request(RequestId id, FinishReason reason, const std::optional<Error>& error);
  void end_every_request(FinishReason reason, const std::optional<Error>& error);

 private:
  // Whether what a choice has captured is published when the choice ends.
  enum class Captures : uint8_t { kPublished, kDiscarded };

  void deliver(OpenRequest& request, int32_t index, const sched::SequenceOutput& output,
               int64_t now_us);
  bool ends_on_rows(OpenRequest& request, int32_t index, const sched::SequenceOutput& output,
                    Event& event, int64_t now_us);
  bool is_eos(const OpenRequest& request, int32_t token) const;
  void finish_choice(OpenRequest& request, int32_t index, Event event, FinishReason reason,
                     int64_t now_us, Captures captures = Captures::kPublished);
  void end_sequence(OpenRequest& request, OpenChoice& choice);
  void fail_choice(OpenRequest& request, int32_t index, const Error& error);
  void send(OpenRequest& request, Event event);
  void send_last_event(OpenRequest& request, OpenChoice& choice, Event event);
  void hold_last_event(OpenRequest& request, OpenChoice& choice, Event event);

  const Parts parts_;
  std::vector<RequestId> broken_;  // whose sinks have thrown
};

}  // namespace rudder::engine
