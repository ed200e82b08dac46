// CapturePool: host memory that captured rows wait in, from the step that captured them until
// whoever got them gives them back. Ranges of any length are leased from one piece and come back in
// any order. take() is called by the executor's worker thread, leases are dropped by any thread.
//
// The memory is the device's (Ops::allocate_staging): leases may outlive the pool, what they lease
// does not outlive the executor.
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
