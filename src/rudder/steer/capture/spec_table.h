// SpecTable: the capture specs that requests may name by number. The dispatcher owns it. Specs with
// equal points and patterns share one set, so that their sequences share an entry of the device's
// table. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "rudder/steer/capture/spec.h"
#include "rudder/steer/leased_table.h"
#include "rudder/tap/capture.h"

namespace rudder::steer::capture {

class SpecTable {
 public:
  // The spec with a number of its own, known by it while somebody holds what this returns.
  std::shared_ptr<const CaptureSpec> keep(CaptureSpec spec);
  // Null: nobody holds it any more.
  std::shared_ptr<const CaptureSpec> find(SpecId id) const { return specs_.find(id); }

 private:
  std::shared_ptr<const tap::CaptureSet> share(std::shared_ptr<const tap::CaptureSet> set);

  std::atomic<uint64_t> next_id_{1};
  LeasedTable<SpecId, CaptureSpec> specs_;
  std::mutex mutex_;  // of sets_
  std::vector<std::weak_ptr<const tap::CaptureSet>> sets_;
};

}  // namespace rudder::steer::capture
