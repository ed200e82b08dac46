// WaitingLines: the sequences that wait, one line a tenant, each by rank and by need. Internal to
// the room; engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>

#include "rudder/sched/state.h"

namespace rudder::sched {

class WaitingLines {
 public:
  struct Line {  // the same sequences in two orders
    std::set<Sequence*, ByRank> by_rank;
    std::set<Sequence*, ByNeed> by_need;
    int64_t blocks = 0;  // that all of them want
  };

  void insert(Sequence& sequence) {
    Line& line = lines_[sequence.tenant];
    line.by_rank.insert(&sequence);
    line.by_need.insert(&sequence);
    line.blocks += sequence.blocks_wanted;
    ++size_;
  }
  void erase(Sequence& sequence) {
    const auto line = lines_.find(sequence.tenant);
    line->second.by_rank.erase(&sequence);
    line->second.by_need.erase(&sequence);
    line->second.blocks -= sequence.blocks_wanted;
    if (line->second.by_rank.empty()) lines_.erase(line);
    --size_;
  }
  void clear() {
    lines_.clear();
    size_ = 0;
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  // Null: nobody of the tenant waits.
  const Line* find(int32_t tenant) const {
    const auto line = lines_.find(tenant);
    return line == lines_.end() ? nullptr : &line->second;
  }
  // None of them is empty.
  const std::map<int32_t, Line>& all() const { return lines_; }

 private:
  std::map<int32_t, Line> lines_;
  size_t size_ = 0;
};

}  // namespace rudder::sched
