// WaitingLines: the sequences that wait, one line a tenant, each by rank and by need. New sequences
// come in here, and those that Running preempts come back. Internal to the room; engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/sched/blocks.h"
#include "rudder/sched/state.h"
#include "rudder/step/ids.h"

namespace rudder::sched {

class WaitingLines {
 public:
  struct Line {  // the same sequences in two orders
    std::set<Sequence*, ByRank> by_rank;
    std::set<Sequence*, ByNeed> by_need;
    int64_t blocks = 0;  // that all of them want
  };

  // `blocks` outlives this.
  explicit WaitingLines(const Blocks& blocks) : blocks_(blocks) {}

  // The last step that was planned.
  void note_step(step::StepId last_step) { last_step_ = last_step; }
  // It waits from now on, and holds nothing.
  void enqueue(Sequence& sequence);
  void dequeue(Sequence& sequence);
  void clear();
  // Who has waited for `max_wait_steps` steps goes before all that have not.
  void promote_starved(int32_t max_wait_steps);

  int32_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  int64_t num_tokens() const { return num_tokens_; }  // of all of them
  // Null: nobody of the tenant waits.
  const Line* find(int32_t tenant) const {
    const auto line = lines_.find(tenant);
    return line == lines_.end() ? nullptr : &line->second;
  }
  // None of them is empty.
  const std::map<int32_t, Line>& all() const { return lines_; }

  // Everything that is kept incrementally, computed anew and compared.
  Result<void> check() const;

 private:
  void insert(Sequence& sequence);
  void erase(Sequence& sequence);

  const Blocks& blocks_;
  step::StepId last_step_ = 0;
  std::map<int32_t, Line> lines_;
  int32_t size_ = 0;
  int64_t num_tokens_ = 0;
  cache::BlockTables found_;        // scratch of enqueue()
  std::vector<Sequence*> starved_;  // scratch of promote_starved()
};

}  // namespace rudder::sched
