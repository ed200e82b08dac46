// The time that a thread has computed, which other work on the machine does not lengthen.
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
