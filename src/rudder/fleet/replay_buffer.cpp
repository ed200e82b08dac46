#include "rudder/fleet/replay_buffer.h"

#include <algorithm>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/fleet/held_blocks.h"

namespace rudder::fleet {

void ReplayBuffer::add(uint64_t sequence, EventBatch batch) {
  RUDDER_CHECK(entries_.empty() || entries_.back().sequence < sequence, "batch {} after {}",
               sequence, entries_.back().sequence);
  ++new_batches_;
  new_bytes_ += batch.bytes();
  entries_.push_back({sequence, std::move(batch)});
}

std::vector<EventBatch> ReplayBuffer::begin_again(int32_t block_size) {
  HeldBlocks held(block_size);
  for (const Entry& entry : entries_) held.apply(entry.batch);
  std::vector<EventBatch> first = held.batches(EventBatch::now_s());
  entries_.clear();
  return first;
}

const ReplayBuffer::Entry* ReplayBuffer::at_or_after(uint64_t sequence) const {
  const auto found = std::ranges::lower_bound(entries_, sequence, {}, &Entry::sequence);
  return found == entries_.end() ? nullptr : &*found;
}

}  // namespace rudder::fleet
