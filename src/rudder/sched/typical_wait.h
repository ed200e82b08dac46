// TypicalWait: how long tokens waited for the step that gave them, over about the last thousand
// steps: a histogram, of which a step counts by its tokens and half of what it did once 1,400
// others have come. Internal to the room; engine thread.
#pragma once

#include <array>
#include <cstddef>

namespace rudder::sched {

class TypicalWait {
 public:
  // `num_tokens` waited for `us` microseconds.
  void add(double us, double num_tokens);

  bool is_empty() const { return total_ == 0; }
  // What `share` (0 to 1) of the tokens did not wait longer than, to a fiftieth. 0 while it is
  // empty.
  double quantile(double share) const;

 private:
  static constexpr size_t kBuckets = 800;  // up to 50 seconds

  std::array<double, kBuckets> tokens_ = {};  // by the logarithm of their wait
  double total_ = 0;
  double weight_ = 1;  // of the next token: what it counts more than those before
};

}  // namespace rudder::sched
