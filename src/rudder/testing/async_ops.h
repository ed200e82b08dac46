// AsyncOps: makes a device that lags behind the host out of one that does not. It queues ops, and a
// thread of its own runs them in order, copies after a pause. So a test gets a wrong result when
// code writes or reads a staging buffer too early, or does not wait for an event. Tests only.
#pragma once

#include <atomic>
#include <memory>

#include "rudder/ops/ops.h"

namespace rudder::testing {

// While `*has_fault`, events report a device fault.
std::unique_ptr<ops::Ops> make_async_ops(
    std::unique_ptr<ops::Ops> inner,
    std::shared_ptr<std::atomic<bool>> has_fault = std::make_shared<std::atomic<bool>>(false));

}  // namespace rudder::testing
