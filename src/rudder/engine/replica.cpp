#include "rudder/engine/replica.h"

#include <cstdint>
#include <utility>

namespace rudder::engine {
namespace {

constexpr int64_t kIdleWakeUs = 250'000;  // the heartbeat that health() listens for

}  // namespace

Replica::Replica(std::unique_ptr<EngineCore> core)
    : core_(std::move(core)), thread_([this] { run(); }) {}

void Replica::stop() {
  if (!thread_.joinable()) return;
  core_->close({ErrorCode::kUnavailable, "the engine is stopping", ""});
  stopping_.store(true, std::memory_order_release);
  core_->wake();
  thread_.join();
}

void Replica::run() {
  while (!stopping_.load(std::memory_order_acquire)) {
    if (!core_->step()) core_->wait(kIdleWakeUs);
  }
  core_->end_all();
}

}  // namespace rudder::engine
