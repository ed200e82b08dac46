// RepetitionDetector: detects that the last tokens of a choice repeat one pattern. For each pattern
// length p it counts how many tokens in a row equal the token p before them: the pattern has come c
// times when that count reaches p * (c - 1). So a token costs max_pattern comparisons, for any
// text. The choice owns it; engine thread.
#pragma once

#include <cstdint>
#include <vector>

#include "rudder/engine/request.h"

namespace rudder::engine {

class RepetitionDetector {
 public:
  explicit RepetitionDetector(const RepetitionLimits& limits);

  // True when the output, with this token, ends in so many repetitions.
  bool push(int32_t token);

 private:
  RepetitionLimits limits_;
  std::vector<int32_t> last_;   // the last max_pattern tokens, a ring
  std::vector<int64_t> equal_;  // by p - 1: tokens in a row that equal the one p before
  int64_t num_tokens_ = 0;
};

}  // namespace rudder::engine
