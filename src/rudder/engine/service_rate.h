// ServiceRate: how fast the bounded queue is served, by what left it to run while something waited.
// Exponential forgetting over time in which something waits; what happens while the queue is empty
// says nothing of how fast it is served. Not thread-safe: BoundedQueue holds a lock.
#pragma once

#include <cstdint>

namespace rudder::engine {

constexpr int32_t kMaxRetryAfter = 600;

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

// Seconds until a request that was refused may try again, where all that waits takes `wait_us` to
// begin and a request may wait for `bound_s` (0: for ever): when half of that has begun, or as much
// that what is left takes half of the bound, whichever is later. So who comes back then finds room
// for what half a queue is, and a queue that has had work until then. 1 to kMaxRetryAfter.
int32_t retry_after_s(int64_t wait_us, double bound_s);

}  // namespace rudder::engine
