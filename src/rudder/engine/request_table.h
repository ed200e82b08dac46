// RequestTable: the open requests by id, and the open choices by the sequence that runs for them.
// Owned by EngineCore and touched by the engine thread alone, but for the count of accepted
// requests, which any thread may read.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "rudder/engine/open_request.h"

namespace rudder::engine {

class RequestTable {
 public:
  // The choice that a sequence runs for.
  struct Target {
    OpenRequest* request = nullptr;
    int32_t choice = 0;
  };

  // Any thread. A request is accepted before it is posted to the engine thread, and finished once,
  // or it is not accepted after all.
  void note_accepted() { num_open_.fetch_add(1, std::memory_order_acq_rel); }
  void take_back() { num_open_.fetch_sub(1, std::memory_order_acq_rel); }
  // Requests that were accepted and have not had their last event.
  int64_t num_open() const { return num_open_.load(std::memory_order_acquire); }
  // Ever. Whoever sees that none is open sees all of them.
  int64_t num_finished() const { return num_finished_.load(std::memory_order_acquire); }

  // The engine thread's from here on.
  void note_finished() {
    num_finished_.fetch_add(1, std::memory_order_acq_rel);
    num_open_.fetch_sub(1, std::memory_order_acq_rel);
  }
  OpenRequest& add(std::unique_ptr<OpenRequest> request);
  // Gives the request its next choice, with a sequence id that was never used before.
  void add_choice(OpenRequest& request, OpenChoice choice);
  OpenRequest* find(RequestId id) const;  // null: it has finished
  // Null: the choice of that sequence has ended.
  const Target* target(sched::SequenceId sequence) const;
  std::vector<RequestId> ids() const;  // ascending

  // No output is for the choice of that sequence any more.
  void forget_sequence(sched::SequenceId sequence) { targets_.erase(sequence); }
  // Removes the request when none of its choices is open.
  void forget_if_finished(const OpenRequest& request);

 private:
  std::atomic<int64_t> num_open_{0};
  std::atomic<int64_t> num_finished_{0};
  std::unordered_map<RequestId, std::unique_ptr<OpenRequest>> requests_;
  std::unordered_map<sched::SequenceId, Target> targets_;
  uint64_t next_sequence_ = 1;
};

}  // namespace rudder::engine
