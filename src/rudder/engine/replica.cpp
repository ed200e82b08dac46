#include "rudder/engine/replica.h"

#include <pthread.h>

#include <utility>

namespace rudder::engine {

Replica::Replica(std::unique_ptr<EngineCore> core, int64_t heartbeat_us)
    : core_(std::move(core)), heartbeat_us_(heartbeat_us), thread_([this] { run(); }) {}

void Replica::stop() {
  if (!thread_.joinable()) return;
  core_->close({ErrorCode::kUnavailable, "the engine is stopping", ""});
  stopping_.store(true, std::memory_order_release);
  core_->wake();
  thread_.join();
}

void Replica::run() {
  pthread_setname_np(pthread_self(), "rudder-engine");
  while (!stopping_.load(std::memory_order_acquire)) {
    if (!core_->step()) core_->wait(heartbeat_us_);
  }
  core_->end_all();
}

}  // namespace rudder::engine
