// Copies: the sequences that wait for the copy that their state is made by, where a copy may take
// longer than its step (StatePool::slow_copies), and how many copies have come to their end.
// Running begins them, Scheduler takes those that are done. Normative text:
// docs/contracts/cache.md, "Copies". Internal to the room; engine thread.
#pragma once

#include <cstdint>
#include <deque>

#include "rudder/base/check.h"
#include "rudder/sched/state.h"

namespace rudder::sched {

class Copies {
 public:
  int32_t size() const { return static_cast<int32_t>(sequences_.size()); }

  // A plan copies what the sequence goes on from, behind those of all plans before.
  void begin(Sequence& sequence) {
    sequence.run.is_copied_to = true;
    sequences_.push_back(&sequence);
  }
  // The next of the first `done` copies that were begun, which nobody was told of; null: none.
  Sequence* take_done(int64_t done) {
    if (num_done_ >= done) return nullptr;
    RUDDER_CHECK(!sequences_.empty(), "{} copies are done, {} were planned", done, num_done_);
    ++num_done_;
    Sequence* const sequence = sequences_.front();
    sequences_.pop_front();
    sequence->run.is_copied_to = false;
    if (sequence->state == SequenceState::kCopying) sequence->state = SequenceState::kRunning;
    return sequence;
  }
  void drop_all() { sequences_.clear(); }

 private:
  std::deque<Sequence*> sequences_;  // in the order of their copies
  int64_t num_done_ = 0;
};

}  // namespace rudder::sched
