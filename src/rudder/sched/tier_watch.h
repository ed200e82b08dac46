// TierWatch: what whoever watches the prefix cache (cache::BlockWatcher) was told of tiers behind
// the device and not told to be gone. Without a watcher it keeps nothing. Internal to the room;
// engine thread.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "rudder/cache/block_watcher.h"
#include "rudder/cache/tier_index.h"
#include "rudder/step/records.h"

namespace rudder::sched {

class TierWatch {
 public:
  // `watcher` outlives this; null: nobody watches.
  TierWatch(cache::BlockWatcher* watcher, int32_t num_groups)
      : watcher_(watcher), num_groups_(num_groups) {}

  bool has_watcher() const { return watcher_ != nullptr; }
  // A record with those parts of the node that `block` describes lies in `medium`.
  void stored(const cache::TierKey& key, step::RecordParts parts, cache::CachedBlock block,
              cache::Medium medium);
  void removed(const cache::TierIndex::Lost& lost);
  // The watcher was told that nothing is cached.
  void clear();
  // One for each block that the watcher was told of and that is still there; without tokens.
  void append_to(std::vector<cache::CachedBlock>* watched) const;

 private:
  struct Told {
    uint64_t hash = 0;
    step::RecordParts parts = 0;
    bool is_public = false;
  };
  using Records = std::unordered_map<cache::TierKey, Told, cache::TierKeyHash>;

  template <typename Take>
  void each_block(const Told& told, cache::Medium medium, const Take& take) const;

  cache::BlockWatcher* const watcher_;
  const int32_t num_groups_;
  std::array<Records, 2> told_;  // of host memory, of files
};

}  // namespace rudder::sched
