// ReplayBuffer: the published batches since the numbers began, without a gap but where the queue
// dropped some, for subscribers that missed some. Routers take a replay only from the number on
// that they ask for and number by number, so nothing may be missing at its beginning: when the
// batches behind the first ones are too many, the publisher begins again, with batches that say
// what is held. The publisher's thread owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "rudder/fleet/event_batch.h"

namespace rudder::fleet {

class ReplayBuffer {
 public:
  struct Entry {
    uint64_t sequence = 0;
    EventBatch batch;
  };

  // Bounds of what is added since the last begin_again().
  ReplayBuffer(int64_t max_batches, int64_t max_bytes)
      : max_batches_(max_batches), max_bytes_(max_bytes) {}

  // `sequence` is above every one before it.
  void add(uint64_t sequence, EventBatch batch);
  bool is_full() const { return new_batches_ >= max_batches_ || new_bytes_ >= max_bytes_; }
  // Empties it, and returns what is to be published first: that the cache is empty, then what is
  // held.
  std::vector<EventBatch> begin_again(int32_t block_size);
  // What was added until now counts no more: as many blocks as the cache has bound it.
  void forget_size() { new_batches_ = new_bytes_ = 0; }

  // The oldest entry that is not before `sequence`; null when there is none.
  const Entry* at_or_after(uint64_t sequence) const;
  size_t size() const { return entries_.size(); }

 private:
  const int64_t max_batches_;
  const int64_t max_bytes_;
  std::deque<Entry> entries_;
  int64_t new_batches_ = 0;
  int64_t new_bytes_ = 0;
};

}  // namespace rudder::fleet
