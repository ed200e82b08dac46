// RestartPace: how long the front waits before it starts another engine process: the longer, the
// more have ended in turn without having done anything. Plain values; one thread's.
#pragma once

#include <algorithm>
#include <cstdint>

namespace rudder::remote {

class RestartPace {
 public:
  static constexpr int64_t kLeastMs = 20;
  static constexpr int64_t kMostMs = 30'000;
  // In turn that never became ready: then no more are started.
  static constexpr int32_t kMaxUnready = 10;

  // A process has become ready; and it has done something for a request.
  void note_ready() { unready_ = 0; }
  void note_progress() { idle_ends_ = 0; }
  // It has ended. The wait before the next, in ms; below 0: there is none.
  int64_t note_end() {
    if (++unready_ > kMaxUnready) return -1;
    const int32_t doublings = std::min(idle_ends_++, 16);
    return std::min(kMostMs, kLeastMs << doublings);
  }

 private:
  int32_t unready_ = 0;
  int32_t idle_ends_ = 0;
};

}  // namespace rudder::remote
