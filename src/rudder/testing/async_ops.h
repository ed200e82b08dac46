// AsyncOps: a device that runs behind the host, made of one that does not. Ops are queued and run
// in order by a thread of its own, copies after a pause: a staging buffer that is written or read
// too early, or an event that is not waited for, shows as a wrong result. Tests only.
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
