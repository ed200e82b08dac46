// CapturePool: host memory that holds captured rows from the step that captured them until their
// receiver releases them. It leases ranges of any length out of one piece; they come back in any
// order. The executor's worker thread calls take(); any thread drops leases.
//
// The memory belongs to the device (Ops::allocate_staging). A lease may outlive the pool object,
// but its memory does not outlive the executor.
#pragma once

#include <cstdint>
#include <memory>

#include "rudder/base/result.h"
#include "rudder/ops/ops.h"

namespace rudder::exec {

class CapturePool {
 public:
  static Result<std::unique_ptr<CapturePool>> make(ops::Ops& ops, int64_t bytes);

  struct Lease {
    ops::View memory;  // [bytes] u8, 64-byte aligned
    std::shared_ptr<const void> lease;
  };
  // An empty lease when there is no room.
  Lease take(int64_t bytes);

 private:
  class Ranges;

  CapturePool(const ops::View& memory, std::shared_ptr<Ranges> ranges)
      : memory_(memory), free_(std::move(ranges)) {}

  const ops::View memory_;
  const std::shared_ptr<Ranges> free_;
};

}  // namespace rudder::exec
