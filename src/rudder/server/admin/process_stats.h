// Memory, CPU time and open descriptors of this process, read from the operating system. Any
// thread.
#pragma once

#include <cstdint>

namespace rudder::server {

struct ProcessStats {
  int64_t resident_bytes = 0;
  double cpu_seconds = 0;
  int64_t open_fds = 0;
  int64_t max_fds = 0;
  double start_time_seconds = 0;  // since the epoch
};

ProcessStats read_process_stats();

}  // namespace rudder::server
