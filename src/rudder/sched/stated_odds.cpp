#include "rudder/sched/stated_odds.h"

#include <algorithm>

namespace rudder::sched {

size_t StatedOdds::level_of(float odds) {
  constexpr std::array<float, kLevels - 1> kEdges = {1.0f / 16, 1.0f / 8, 1.0f / 4,  1.0f / 2,
                                                     3.0f / 4,  7.0f / 8, 15.0f / 16};
  return static_cast<size_t>(std::ranges::upper_bound(kEdges, odds) - kEdges.begin());
}

void StatedOdds::note(float odds, size_t run, bool is_hit, float keep) {
  const size_t level = level_of(odds);
  for (size_t depth = 0; depth <= std::min(run, kDepths - 1); ++depth) {
    rates_[depth][level].note(is_hit, keep);
  }
}

float StatedOdds::estimate(float odds, size_t depth, const StatedOdds* all) const {
  const size_t level = level_of(odds);
  const size_t last = std::min(depth, kDepths - 1);
  if (all != nullptr) return rates_[last][level].estimate(all->estimate(odds, depth, nullptr));
  float prior = odds;
  for (size_t i = 0; i <= last; ++i) prior = rates_[i][level].estimate(prior);
  return prior;
}

}  // namespace rudder::sched
