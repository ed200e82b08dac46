// DeviceTime: how long iterations took on the device, as far as the host sees it: in the order in
// which they ran, when each was enqueued and whether it was over when it was looked for. Used by
// the executor's engine thread.
#pragma once

#include <algorithm>
#include <cstdint>

namespace rudder::exec {

class DeviceTime {
 public:
  struct Seen {
    int64_t start_us = 0;     // its enqueueing began
    int64_t enqueued_us = 0;  // that was over; where guesses follow: the iteration was over
    int64_t end_us = 0;       // it was looked for, or waited for, less the time of its guesses
    bool was_done = false;    // it was not waited for
    bool was_set_up = false;  // the time has something in it that is paid once
  };

  // Of the next iteration: it began when the one before it ended, or when its enqueueing did; it
  // ended before it was looked for if it was not waited for, and after it was enqueued. 0: not
  // known well, or no measure of other iterations.
  int64_t note(const Seen& seen) {
    const int64_t start_us = std::max(seen.start_us, last_end_us_);
    const bool began_behind = last_end_us_ >= seen.start_us;
    const int64_t end_us = seen.was_done ? seen.enqueued_us : seen.end_us;
    const int64_t device_us = end_us - start_us;
    const bool end_known = seen.end_us - end_us <= device_us / 8;
    const bool is_known = end_known && (last_end_known_ || !began_behind) && !seen.was_set_up;
    last_end_us_ = end_us;
    last_end_known_ = end_known;
    return is_known ? std::max<int64_t>(device_us, 0) : 0;
  }

  // What ran behind the last iteration, before the next one, has ended.
  void note_guesses(int64_t end_us, bool is_known) {
    last_end_us_ = std::max(last_end_us_, end_us);
    last_end_known_ = is_known;
  }

 private:
  int64_t last_end_us_ = 0;
  bool last_end_known_ = true;
};

}  // namespace rudder::exec
