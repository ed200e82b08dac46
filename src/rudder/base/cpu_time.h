// CPU time of a thread: unlike wall time it does not grow while other processes run. Used by tests
// and benches that bound the cost of a piece of code.
#pragma once

#include <ctime>

namespace rudder {

// Of the calling thread, in seconds.
inline double thread_cpu_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace rudder
