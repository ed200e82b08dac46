// Shows the progress of long work on standard error: a bar that redraws on a terminal, else a line
// every few seconds, whatever the log level. One thread at a time may use an object.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace rudder {

// Long work reports (done, total) in units of its own, often: the receiver limits the rate.
using ProgressFn = std::function<void(int64_t done, int64_t total)>;

class Progress {
 public:
  // `unit_is_bytes` prints MiB and MiB/s instead of counts.
  Progress(std::string label, bool unit_is_bytes);
  ~Progress();  // ends a line that is not complete
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(int64_t done, int64_t total);
  ProgressFn callback() {
    return [this](int64_t done, int64_t total) { update(done, total); };
  }

 private:
  void draw(double seconds);

  const std::string label_;
  const bool unit_is_bytes_;
  const bool is_terminal_;
  int64_t start_us_ = 0;
  int64_t last_draw_us_ = 0;
  int64_t done_ = 0;
  int64_t total_ = 0;
  bool drawn_complete_ = false;
};

}  // namespace rudder
