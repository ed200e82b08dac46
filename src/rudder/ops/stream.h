// Completion events and captured graphs: the parts of a device's stream that exec uses. Ops makes
// them and outlives them. Each function names the threads that may call it.
#pragma once

#include "rudder/base/result.h"

namespace rudder::ops {

// A point in the stream, recorded by Ops::record.
class Event {
 public:
  virtual ~Event() = default;
  // Any thread. Waits for everything enqueued before the record; an Error is the device's.
  virtual Result<void> wait() = 0;
  virtual bool done() = 0;
};

// A captured sequence of ops. Host values are those of the capture; device memory is read anew.
class Graph {
 public:
  virtual ~Graph() = default;
};

}  // namespace rudder::ops
