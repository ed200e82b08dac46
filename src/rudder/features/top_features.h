// The largest of a token's features. A pure function; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace rudder::features {

struct FeatureValue {
  int32_t feature = 0;
  float value = 0;
};

// Those above 0, at most `count`, the largest first; of equal ones the lower number.
std::vector<FeatureValue> top_features(std::span<const float> features, int32_t count);

}  // namespace rudder::features
