// AnswerLength: how many tokens an answer will have, from those that ended: as many as the last
// answers in the mean, or as large a share of what it may have as they had, whichever is more. The
// mean alone would take the first long answers behind many short ones for short. Before any answer
// ended each is as long as it may be. Internal to the room; engine thread.
#pragma once

#include <algorithm>
#include <cstdint>

namespace rudder::sched {

class AnswerLength {
 public:
  // An answer that might have had `most` tokens ended with so many.
  void note(int64_t tokens, int64_t most) {
    num_seen_ = std::min(num_seen_ + 1, kLastAnswers);
    const double rate = 1 / static_cast<double>(num_seen_);
    const auto len = static_cast<double>(tokens);
    mean_ += rate * (len - mean_);
    mean_share_ += rate * (len / static_cast<double>(most) - mean_share_);
  }

  // Of an answer that may have `most` tokens; at least 1.
  double expected(int64_t most) const {
    const auto longest = static_cast<double>(most);
    if (num_seen_ == 0) return longest;
    return std::clamp(std::max(mean_, mean_share_ * longest), 1.0, longest);
  }

 private:
  static constexpr int64_t kLastAnswers = 256;

  double mean_ = 0;
  double mean_share_ = 0;
  int64_t num_seen_ = 0;  // at most kLastAnswers
};

}  // namespace rudder::sched
