// ReplayBuffer: the last published batches, for subscribers that missed some. Bounded in batches
// and in bytes; the oldest go. The publisher's thread owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

namespace rudder::fleet {

class ReplayBuffer {
 public:
  struct Entry {
    uint64_t sequence = 0;
    std::string payload;
  };

  ReplayBuffer(int64_t max_batches, int64_t max_bytes)
      : max_batches_(max_batches), max_bytes_(max_bytes) {}

  // `sequence` is above every one before it.
  void add(uint64_t sequence, std::string payload);
  // The oldest entry that is not before `sequence`; null when there is none.
  const Entry* at_or_after(uint64_t sequence) const;
  size_t size() const { return entries_.size(); }

 private:
  const int64_t max_batches_;
  const int64_t max_bytes_;
  std::deque<Entry> entries_;
  int64_t bytes_ = 0;
};

}  // namespace rudder::fleet
