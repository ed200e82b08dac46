// Clock: monotonic time in microseconds behind an interface, so that the simulator can run on
// virtual time. Engine, scheduler and executor get a Clock from their makers.
#pragma once

#include <chrono>
#include <cstdint>

namespace rudder {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t now_us() const = 0;  // monotonic, any thread
};

class SteadyClock final : public Clock {
 public:
  int64_t now_us() const override {
    return std::chrono::duration_cast<std::chrono::microseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

}  // namespace rudder
