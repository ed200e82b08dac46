// What the device ran, kernel by kernel, also inside replays of graphs: CUPTI's activity records of
// this process. For `rudder bench trace`; one at a time, called on one thread.
#pragma once

#include <memory>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/cuda/step_attribution.h"

namespace rudder::cuda {

class NodeTrace {
 public:
  virtual ~NodeTrace() = default;
  // Forgets what was recorded so far.
  virtual void clear() = 0;
  // All nodes since the last clear(), in the order of their begins. The device is idle.
  virtual std::vector<DeviceNode> nodes() = 0;
};

// To be called before the device is first used. kUnsupported: a build without CUPTI's headers, no
// library, or a driver that refuses.
Result<std::unique_ptr<NodeTrace>> start_node_trace();

}  // namespace rudder::cuda
