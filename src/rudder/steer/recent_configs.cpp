#include "rudder/steer/recent_configs.h"

#include <algorithm>
#include <utility>

#include "rudder/features/dictionary.h"

namespace rudder::steer {
namespace {

// Whether all of its vectors are rows of the dictionary.
bool is_bare_clamp(const OpSpec& spec) {
  if (spec.op != OpName::kFeature || spec.gate.kind != Gate::Kind::kNone) return false;
  return spec.chosen.empty() &&
         (spec.vector.empty() || spec.vector.buffer == spec.clamp.dictionary->decoder);
}

}  // namespace

Result<std::shared_ptr<const Config>> RecentConfigs::config_of(
    const std::shared_ptr<const Model>& model, std::vector<OpSpec> specs) {
  if (!std::ranges::all_of(specs, is_bare_clamp)) return Config::build(model, std::move(specs));
  if (std::shared_ptr<const Config> known = find(specs)) return known;
  RUDDER_TRY(std::shared_ptr<const Config> config, Config::build(model, std::move(specs)));
  keep(config);
  return config;
}

std::shared_ptr<const Config> RecentConfigs::find(const std::vector<OpSpec>& specs) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(
      configs_, [&](const std::shared_ptr<const Config>& kept) { return kept->specs() == specs; });
  if (found == configs_.end()) return nullptr;
  std::rotate(found, found + 1, configs_.end());
  return configs_.back();
}

void RecentConfigs::keep(std::shared_ptr<const Config> config) {
  std::shared_ptr<const Config> forgotten;  // it ends behind the lock
  const std::lock_guard lock(mutex_);
  if (configs_.size() == kMost) {
    forgotten = std::move(configs_.front());
    configs_.erase(configs_.begin());
  }
  configs_.push_back(std::move(config));
}

}  // namespace rudder::steer
