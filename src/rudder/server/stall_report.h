// StallReport: says in the log that a replica of the engine makes no progress, what its step was
// and where every thread is, while it stands so; and that it goes on. One thread looks, a few times
// a second (Server::watch); it never waits.
#pragma once

#include <chrono>
#include <cstdint>
#include <future>
#include <vector>

#include "rudder/engine/engine.h"

namespace rudder::server {

class StallReport {
 public:
  // Threads are told at most so often: a step that always takes long is told once in a while.
  static constexpr int64_t kPeriodUs = 60'000'000;
  static constexpr std::chrono::seconds kTellPatience{2};

  StallReport() = default;
  // Waits for what is being told, but not for ever.
  ~StallReport();
  StallReport(const StallReport&) = delete;
  StallReport& operator=(const StallReport&) = delete;

  void look(const std::vector<engine::ReplicaState>& replicas, int64_t now_us);
  int64_t num_told() const { return num_told_; }  // of stalls, with their threads

 private:
  std::vector<int64_t> stalled_since_us_;  // by replica; 0: it goes on
  int64_t told_us_ = -kPeriodUs;
  int64_t num_told_ = 0;
  std::future<void> telling_;
};

}  // namespace rudder::server
