// ServiceRate: how fast the bounded queue is served, by what left it to run while something waited.
// Exponential forgetting over time in which something waits; what happens while the queue is empty
// says nothing of how fast it is served. Not thread-safe: Admission holds a lock.
#pragma once

#include <cstdint>

namespace rudder::engine {

// What waits, or leaves.
struct QueueLoad {
  int64_t requests = 0;
  int64_t tokens = 0;  // of the prompts, each choice counted
};

class ServiceRate {
 public:
  // Something waits from now on; nothing did.
  void note_busy(int64_t now_us) { since_us_ = now_us; }
  // So much of what waited has begun to run.
  void note_started(const QueueLoad& load, int64_t now_us);

  // Microseconds in which so much will have begun to run, by requests or by tokens, whichever is
  // longer. 0 while nothing is known. `is_busy`: something waits now.
  int64_t time_for(const QueueLoad& load, bool is_busy, int64_t now_us) const;

 private:
  // Decayed sums over the time in which something waited.
  double us_ = 0;
  double requests_ = 0;
  double tokens_ = 0;
  int64_t since_us_ = 0;  // us_ covers the time before
};

}  // namespace rudder::engine
