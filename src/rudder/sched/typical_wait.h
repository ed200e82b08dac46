// TypicalWait: how many times as long as for a step without prompts tokens waited, over about the
// last thousand steps: a histogram, in which a step counts half once 1,400 others have come. It
// begins with steps that had no prompts. Internal to the room; engine thread.
#pragma once

#include <array>
#include <cstddef>

namespace rudder::sched {

class TypicalWait {
 public:
  TypicalWait();

  // A step took `times` as long as it would have taken without prompts.
  void add(double times);

  // What a share (0 to 1) of the steps did not exceed, to a fiftieth.
  double quantile(double share) const;

 private:
  static constexpr size_t kBuckets = 500;  // up to 600 times

  std::array<double, kBuckets> steps_ = {};  // by the logarithm of their times
  double total_ = 0;
  double weight_ = 1;  // of the next step: what it counts more than those before
};

}  // namespace rudder::sched
