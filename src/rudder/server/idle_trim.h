// IdleTrim: decides when a server gives freed memory back to the operating system
// (base/heap.h): in the first second without work that follows a second with some. Work is measured
// as CPU time of the process, so that whatever allocates counts: requests, refused bodies,
// compiles, the start. One thread.
#pragma once

#include <cstdint>

namespace rudder::server {

class IdleTrim {
 public:
  static constexpr int64_t kPeriodUs = 1'000'000;  // between two ticks
  // CPU time in a period up to which nothing is going on; scrapes of /metrics stay below it.
  static constexpr int64_t kQuietUs = 20'000;
  // CPU time since the last trim that makes another worth it.
  static constexpr int64_t kWorkUs = 200'000;

  // Called once a period with the CPU time of the process so far. True: trim now.
  bool tick(int64_t cpu_us);

 private:
  int64_t last_us_ = 0;     // at the last tick
  int64_t trimmed_us_ = 0;  // at the last trim
};

}  // namespace rudder::server
