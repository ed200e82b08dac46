// HeldBlocks: what the prefix cache holds after a run of batches, and the batches that say so to
// who knows nothing. One thread; the batches outlive it.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "rudder/fleet/event_batch.h"

namespace rudder::fleet {

class HeldBlocks {
 public:
  explicit HeldBlocks(int32_t block_size) : block_size_(static_cast<size_t>(block_size)) {}

  // In the order of publication.
  void apply(const EventBatch& batch);
  size_t size() const { return blocks_.size(); }
  // The first clears the cache; the blocks come behind it, each behind its parent where that is
  // held.
  std::vector<EventBatch> batches(double time_s) const;

 private:
  using Key = std::pair<int32_t, uint64_t>;  // group, hash
  struct Block {
    BlockEvent stored;
    std::span<const int32_t> tokens;  // [block_size]
  };

  void write_behind_parents(const Block& block, std::set<Key>& written,
                            std::vector<EventBatch>& batches) const;

  const size_t block_size_;
  std::map<Key, Block> blocks_;
};

}  // namespace rudder::fleet
