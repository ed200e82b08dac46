// CPU time of a thread or of the process: unlike wall time it does not grow while other processes
// run. Used by tests and benches that bound the cost of a piece of code, and to tell whether a
// server is idle.
#pragma once

#include <cstdint>
#include <ctime>

namespace rudder {

// Of the calling thread, in seconds.
inline double thread_cpu_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Of all threads together, in microseconds.
inline int64_t process_cpu_us() {
  timespec now = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1'000;
}

}  // namespace rudder
