#include "rudder/fleet/replay_buffer.h"

#include <algorithm>
#include <utility>

#include "rudder/base/check.h"

namespace rudder::fleet {

void ReplayBuffer::add(uint64_t sequence, std::string payload) {
  RUDDER_CHECK(entries_.empty() || entries_.back().sequence < sequence, "batch {} after {}",
               sequence, entries_.back().sequence);
  bytes_ += std::ssize(payload);
  entries_.push_back({sequence, std::move(payload)});
  while (std::ssize(entries_) > max_batches_ || bytes_ > max_bytes_) {
    bytes_ -= std::ssize(entries_.front().payload);
    entries_.pop_front();
  }
}

const ReplayBuffer::Entry* ReplayBuffer::at_or_after(uint64_t sequence) const {
  const auto found = std::ranges::lower_bound(entries_, sequence, {}, &Entry::sequence);
  return found == entries_.end() ? nullptr : &*found;
}

}  // namespace rudder::fleet
