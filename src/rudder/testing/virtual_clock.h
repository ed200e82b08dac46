// A clock that moves only when told to. Any thread may read it.
#pragma once

#include <atomic>
#include <cstdint>

#include "rudder/base/clock.h"

namespace rudder::testing {

class VirtualClock final : public Clock {
 public:
  int64_t now_us() const override { return now_us_.load(std::memory_order_acquire); }
  void advance(int64_t us) { now_us_.fetch_add(us, std::memory_order_acq_rel); }
  void advance_to(int64_t us) {
    if (us > now_us()) now_us_.store(us, std::memory_order_release);
  }

 private:
  std::atomic<int64_t> now_us_{0};
};

}  // namespace rudder::testing
