// StatedOdds: what the odds that a proposer states (Draft::odds) are worth: how often a token of
// such odds came where what it follows had come. Kept by the odds, and by how many tokens of a
// guess came before: who was right several times is right again more often than counts say. Of a
// sequence, and of all; engine thread.
#pragma once

#include <array>
#include <cstddef>

#include "rudder/sched/hit_rate.h"

namespace rudder::sched {

class StatedOdds {
 public:
  // A token of such odds came, or another one, behind `run` tokens that were guessed right. A guess
  // behind the last few of these would have had it as well, so it tells of 0 to `run`.
  void note(float odds, size_t run, bool is_hit, float keep);
  // How likely it is at `depth` tokens of a guess, where these come. `all` is the same of all
  // sequences; those know no better than what is stated.
  float estimate(float odds, size_t depth, const StatedOdds* all) const;

 private:
  static constexpr size_t kDepths = 4;  // further ones are as the last
  static constexpr size_t kLevels = 8;

  static size_t level_of(float odds);

  std::array<std::array<HitRate, kLevels>, kDepths> rates_ = {};
};

}  // namespace rudder::sched
