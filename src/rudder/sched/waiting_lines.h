// WaitingLines: the sequences that wait, one line a tenant, each by rank. Internal to the room;
// engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>

#include "rudder/sched/state.h"

namespace rudder::sched {

class WaitingLines {
 public:
  using Line = std::set<Sequence*, ByRank>;

  void insert(Sequence& sequence) {
    lines_[sequence.tenant].insert(&sequence);
    ++size_;
  }
  void erase(Sequence& sequence) {
    const auto line = lines_.find(sequence.tenant);
    line->second.erase(&sequence);
    if (line->second.empty()) lines_.erase(line);
    --size_;
  }
  void clear() {
    lines_.clear();
    size_ = 0;
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  // None of them is empty.
  const std::map<int32_t, Line>& all() const { return lines_; }

 private:
  std::map<int32_t, Line> lines_;
  size_t size_ = 0;
};

}  // namespace rudder::sched
