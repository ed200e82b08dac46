// RequestStarter: from an accepted request to the sequences that the scheduler runs for it. One
// with taps or an adapter first waits for rows of the tables; while the engine is to rest all that
// come wait. Owned by EngineCore; the engine thread's alone, but for rest().is_at_rest().
#pragma once

#include <cstdint>

#include "rudder/engine/capture_bridge.h"
#include "rudder/engine/delivery.h"
#include "rudder/engine/open_request.h"
#include "rudder/engine/request_table.h"
#include "rudder/engine/rest.h"
#include "rudder/engine/tap_queue.h"
#include "rudder/sched/scheduler.h"

namespace rudder::engine {

class RequestStarter {
 public:
  // All of it outlives the starter.
  struct Parts {
    sched::Scheduler* scheduler;
    RequestTable* requests;
    TapQueue* taps;
    CaptureBridge* captures;
    Delivery* delivery;
  };
  explicit RequestStarter(const Parts& parts)
      : parts_(parts),
        rest_({.scheduler = parts.scheduler,
               .requests = parts.requests,
               .taps = parts.taps,
               .delivery = parts.delivery}) {}

  // Schedules the request, or queues it for the rows that it needs, or holds it back.
  void begin(OpenRequest& request);
  // Every request that gets what it waited for begins its captures and runs.
  void begin_waiting();
  // What was held back begins, where the order is to go on.
  void follow(const RestOrder& order);
  Rest& rest() { return rest_; }
  const Rest& rest() const { return rest_; }

 private:
  void schedule(OpenRequest& request);

  const Parts parts_;
  Rest rest_;
};

}  // namespace rudder::engine
