#include "rudder/features/top_features.h"

#include <algorithm>

namespace rudder::features {

std::vector<FeatureValue> top_features(std::span<const float> features, int32_t count) {
  std::vector<FeatureValue> active;
  for (size_t j = 0; j < features.size(); ++j) {
    if (features[j] > 0) active.push_back({static_cast<int32_t>(j), features[j]});
  }
  const auto kept = std::min(static_cast<size_t>(count), active.size());
  const auto is_before = [](const FeatureValue& a, const FeatureValue& b) {
    return a.value > b.value || (a.value == b.value && a.feature < b.feature);
  };
  std::ranges::partial_sort(active, active.begin() + static_cast<std::ptrdiff_t>(kept), is_before);
  active.resize(kept);
  return active;
}

}  // namespace rudder::features
