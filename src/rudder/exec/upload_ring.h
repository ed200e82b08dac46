// UploadRing: copies data to the device that is not part of a step's one copy, through a ring of
// staging memory. It allocates nothing, and waits only when the device is a whole ring behind. Used
// by the executor's worker thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "rudder/base/result.h"
#include "rudder/ops/ops.h"

namespace rudder::exec {

class UploadRing {
 public:
  // `bytes` of staging memory, in parts; `ops` outlives the ring.
  static Result<std::unique_ptr<UploadRing>> make(ops::Ops& ops, int64_t bytes);

  // Enqueues the copy of device.bytes() bytes to `device`; `from` is free when this returns. An
  // Error is the device's.
  Result<void> copy(const ops::View& device, const void* from);

 private:
  explicit UploadRing(ops::Ops& ops) : ops_(ops) {}

  Result<void> next_part();

  struct Part {
    ops::View staging;  // [bytes] u8
    std::unique_ptr<ops::Event> sent;
    bool is_under_way = false;
  };

  ops::Ops& ops_;
  std::array<Part, 4> parts_;
  size_t current_ = 0;
  int64_t used_ = 0;  // of the current part
};

}  // namespace rudder::exec
