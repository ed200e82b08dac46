// Vitals: whether what a server consists of still goes on: its engine, its I/O threads, its pool. A
// thread that stands still for good (a device that hangs, a lock that nobody gives back) takes the
// service with it while the process lives, and what supervises processes sees only those that end.
// One thread ticks, a few times a second.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/base/starvation.h"

namespace rudder::server {

// Whether this process computes, or would if it got cores and memory: then what is still may only
// take long.
class Exertion {
 public:
  // What the kernel says of a process at one moment.
  struct Readings {
    int64_t now_us = 0;
    int64_t cpu_us = 0;        // that the process has had since its start
    int64_t major_faults = 0;  // likewise
    bool starves = false;      // a thread wanted a core since the last readings, and got too little
  };

  // Since the look before: by this process's readings.
  bool look();
  // By the readings given.
  bool look(const Readings& readings);

 private:
  Starvation starvation_;
  Readings last_;
};

class Vitals {
 public:
  static constexpr int64_t kPeriodUs = 250'000;
  // How long a part may stand still while the process does nothing, and while it exerts itself.
  static constexpr int32_t kPatience = 60;           // ticks: 15 s
  static constexpr int32_t kExertedPatience = 2400;  // 10 minutes

  // `is_still`: that it has work and has not gone on since the last tick; called on ticks.
  void add(std::string part, std::function<bool()> is_still);
  // An Error: that part stands still for good. Time is counted in ticks: a process that was
  // suspended has had none. `exerts` is asked where something is still.
  Result<void> tick(const std::function<bool()>& exerts);

 private:
  struct Part {
    std::string name;
    std::function<bool()> is_still;
    int32_t still = 0;    // ticks
    int32_t exerted = 0;  // of those
  };
  std::vector<Part> parts_;
};

}  // namespace rudder::server
