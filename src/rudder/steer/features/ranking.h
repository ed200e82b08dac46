// Ranks features by how they tell two sets of prompts apart. Pure functions over values in memory;
// used by `rudder features rank`.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rudder/steer/train/directions.h"

namespace rudder::steer {

// The probability that a value of `positive` is above one of `negative`, ties counted half: the
// area under the curve of true against false positives. 0.5 when a set is empty.
double auroc(std::span<const float> positive, std::span<const float> negative);

struct FeatureRank {
  int32_t feature = 0;
  double positive = 0;  // mean values
  double negative = 0;
  double auroc = 0.5;

  double difference() const { return positive - negative; }
};

// Of every feature; rows [prompts, features]. The largest difference first, of equal ones the lower
// number. The sets have rows of one width.
std::vector<FeatureRank> rank_features(const RowSet& positive, const RowSet& negative);

}  // namespace rudder::steer
