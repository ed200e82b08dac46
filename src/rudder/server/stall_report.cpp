#include "rudder/server/stall_report.h"

#include <future>
#include <thread>
#include <utility>

#include "rudder/base/log.h"
#include "rudder/base/thread_stacks.h"

namespace rudder::server {

void StallReport::look(const std::vector<engine::ReplicaState>& replicas, int64_t now_us) {
  stalled_since_us_.resize(replicas.size(), 0);
  bool is_new = false;
  for (size_t i = 0; i < replicas.size(); ++i) {
    const Result<void>& health = replicas[i].health;
    int64_t& since_us = stalled_since_us_[i];
    const bool is_stalled = !health && health.error().code == ErrorCode::kUnavailable;
    if (is_stalled && since_us == 0) {
      since_us = now_us;
      is_new = true;
      log_error("engine {} of {}: {}", i, replicas.size(), health.error().message);
    } else if (!is_stalled && since_us != 0) {
      log_info("engine {} of {} goes on, {} ms after it was seen to stand still", i,
               replicas.size(), (now_us - since_us) / 1000);
      since_us = 0;
    }
  }
  if (!is_new || now_us - told_us_ < kPeriodUs) return;
  told_us_ = now_us;
  ++num_told_;
  // On a thread of its own: those that are asked may not answer, and one of them may hold what
  // asking needs.
  std::packaged_task<void()> tell([] {
    for (const std::string& line : describe_threads()) log_error("thread {}", line);
  });
  telling_ = tell.get_future();
  std::thread(std::move(tell)).detach();
}

StallReport::~StallReport() {
  if (telling_.valid()) telling_.wait_for(kTellPatience);
}

}  // namespace rudder::server
