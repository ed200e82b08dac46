// Whether threads of this process want a core and get none, as on a machine that does much else or
// in a container that has used up its share. Who waits for another thread asks, and is then not
// impatient. One thread's.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>

namespace rudder {

class Starvation {
 public:
  // Since the look before: a thread other than the calling one was ready to run and had less than
  // half of a core. False at the first look. Reads a small file for each thread.
  bool look();

 private:
  std::map<int32_t, int64_t> run_ns_;  // by thread: what it had run at the last look
  std::chrono::steady_clock::time_point last_;
};

}  // namespace rudder
