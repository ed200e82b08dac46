#include "rudder/engine/repetition.h"

#include <algorithm>

namespace rudder::engine {

RepetitionDetector::RepetitionDetector(const RepetitionLimits& limits) : limits_(limits) {
  limits_.min_pattern = std::max(1, limits_.min_pattern);
  last_.resize(static_cast<size_t>(limits_.max_pattern));
  equal_.resize(last_.size());
}

bool RepetitionDetector::push(int32_t token) {
  if (limits_.max_pattern == 0) return false;
  bool repeats = false;
  const int64_t known = std::min<int64_t>(num_tokens_, limits_.max_pattern);
  for (int64_t p = 1; p <= known; ++p) {
    int64_t& equal = equal_[static_cast<size_t>(p - 1)];
    const bool same = last_[static_cast<size_t>((num_tokens_ - p) % limits_.max_pattern)] == token;
    equal = same ? equal + 1 : 0;
    repeats = repeats || (p >= limits_.min_pattern && equal >= p * (limits_.min_count - 1));
  }
  last_[static_cast<size_t>(num_tokens_ % limits_.max_pattern)] = token;
  ++num_tokens_;
  return repeats;
}

}  // namespace rudder::engine
