// CachedKeys: which block keys a prefix cache holds, for threads that may not ask the cache itself.
// It follows the cache as its watcher, and is exact up to the last step; keys are told apart by
// their low halves. The engine thread writes it, any thread asks.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "rudder/cache/block_key.h"
#include "rudder/cache/block_watcher.h"

namespace rudder::cache {

class CachedKeys final : public BlockWatcher {
 public:
  // Looks at the blocks of one KV group that lie on the device. `next` is told the same; null:
  // nobody is.
  CachedKeys(int32_t group, BlockWatcher* next) : group_(group), next_(next) {}

  bool contains(const BlockKey& key) const;
  size_t size() const;

  void stored(const CachedBlock& block) override;
  void removed(const CachedBlock& block) override;
  void cleared() override;
  void step_done() override;

 private:
  struct Change {
    uint64_t hash = 0;
    bool is_stored = false;
  };

  bool is_followed(const CachedBlock& block) const {
    return block.group == group_ && block.medium == Medium::kDevice;
  }

  const int32_t group_;
  BlockWatcher* const next_;
  std::vector<Change> changes_;  // of this step
  bool is_cleared_ = false;      // before the changes
  mutable std::mutex mutex_;
  std::unordered_set<uint64_t> held_;
};

}  // namespace rudder::cache
