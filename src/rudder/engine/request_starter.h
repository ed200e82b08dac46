// RequestStarter: from an accepted request to the sequences that the scheduler runs for it. One
// with taps or an adapter first waits for rows of the tables. Owned by EngineCore; the engine
// thread's alone.
#pragma once

#include <cstdint>

#include "rudder/engine/capture_bridge.h"
#include "rudder/engine/delivery.h"
#include "rudder/engine/open_request.h"
#include "rudder/engine/tap_queue.h"
#include "rudder/sched/scheduler.h"

namespace rudder::engine {

class RequestStarter {
 public:
  // All of it outlives the starter.
  struct Parts {
    sched::Scheduler* scheduler;
    TapQueue* taps;
    CaptureBridge* captures;
    Delivery* delivery;
  };
  explicit RequestStarter(const Parts& parts) : parts_(parts) {}

  // Schedules the request, or queues it for the rows that it needs.
  void begin(OpenRequest& request);
  // Every request that gets what it waited for begins its captures and runs.
  void begin_waiting();

 private:
  void schedule(OpenRequest& request);

  const Parts parts_;
};

}  // namespace rudder::engine
