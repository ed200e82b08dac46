// RepetitionDetector: notices that the last tokens of a choice are one pattern over and over. For
// each length p of a pattern it counts the tokens in a row that equal the one p before them: the
// pattern has come c times when that count reaches p * (c - 1). So a token costs max_pattern
// comparisons, whatever the text. Owned by the choice, on the engine thread.
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
