// Replica: an EngineCore on a thread of its own, the engine thread. An engine has one or several;
// each alone uses its scheduler, its KV bookkeeping and its executor.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "rudder/engine/engine_core.h"

namespace rudder::engine {

class Replica {
 public:
  // What health() listens for: an idle thread wakes up this often.
  static constexpr int64_t kHeartbeatUs = 250'000;

  explicit Replica(std::unique_ptr<EngineCore> core, int64_t heartbeat_us = kHeartbeatUs);
  ~Replica() { stop(); }
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  EngineCore& core() const { return *core_; }
  // Ends every open request with kCancelled, and the thread. Idempotent.
  void stop();

 private:
  void run();

  const std::unique_ptr<EngineCore> core_;
  const int64_t heartbeat_us_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;  // last: it uses the others
};

}  // namespace rudder::engine
