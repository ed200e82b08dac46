#include "rudder/tap/passage.h"

#include <algorithm>
#include <bit>

namespace rudder::tap {

PassageSet PassageSet::all(Passages kinds, int32_t num_layers) {
  PassageSet set;
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    for (const Site site : {Site::kResidPre, Site::kAttnZ, Site::kResidMid, Site::kRouterLogits,
                            Site::kMlpAct, Site::kResidPost}) {
      if ((passage(site) & kinds) != 0) set.add({layer, site});
    }
    if ((kinds & kMixerWeights) != 0) set.add_patterns(layer);
  }
  return set;
}

void PassageSet::add(Point point) {
  kinds_ |= passage(point.site);
  add_stage(stage_of(point));
}

void PassageSet::add_patterns(int32_t layer) {
  kinds_ |= kMixerWeights;
  add_stage(patterns_of(layer));
}

void PassageSet::add(const PassageSet& others) {
  kinds_ |= others.kinds_;
  if (stages_.size() < others.stages_.size()) stages_.resize(others.stages_.size());
  for (size_t i = 0; i < others.stages_.size(); ++i) stages_[i] |= others.stages_[i];
}

void PassageSet::clear() {
  kinds_ = 0;
  stages_.clear();
}

bool PassageSet::contains(const PassageSet& others) const {
  if (others.stages_.size() > stages_.size()) return false;
  for (size_t i = 0; i < others.stages_.size(); ++i) {
    if ((others.stages_[i] & ~stages_[i]) != 0) return false;
  }
  return true;
}

int32_t PassageSet::size() const {
  int32_t count = 0;
  for (const uint64_t word : stages_) count += std::popcount(word);
  return count;
}

void PassageSet::add_stage(int32_t stage) {
  const auto word = static_cast<size_t>(stage) / 64;
  if (stages_.size() <= word) stages_.resize(word + 1);
  stages_[word] |= uint64_t{1} << (stage % 64);
}

}  // namespace rudder::tap
