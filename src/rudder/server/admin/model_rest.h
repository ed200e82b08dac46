// ModelRest: whether the model is awake, pauses or sleeps, and the changes between: one at a time,
// on a thread of their own, since they wait for requests and read files. Any thread may ask; stop()
// comes before the engine's end.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "rudder/base/result.h"
#include "rudder/engine/engine.h"
#include "rudder/server/admin/residence.h"

namespace rudder::server {

class ModelRest {
 public:
  enum class State : uint8_t { kAwake, kPaused, kAsleep };

  // Both outlive it; without a residence nothing sleeps and no weights are replaced.
  ModelRest(engine::Engine& engine, Residence* residence)
      : engine_(engine), residence_(residence) {}
  ~ModelRest() { stop(); }

  State state() const { return state_.load(std::memory_order_acquire); }
  int32_t level() const { return level_.load(std::memory_order_acquire); }  // of its sleep
  uint64_t num_updates() const { return num_updates_.load(std::memory_order_relaxed); }

  // Runs `change` on the thread, which calls the functions below, and then `tell`, which must not
  // wait: who is told may begin the next change. False: another change is under way, or it has
  // stopped.
  bool run(std::function<void()> change, std::function<void()> tell = {});
  // Waits for the change under way; none begins any more.
  void stop();

  struct RestWish {
    engine::RestMode mode = engine::RestMode::kAbort;
    int64_t timeout_us = 0;
    bool keeps_cache = false;  // through a pause; whatever else changes the model forgets it
  };
  // kUnavailable: it is not awake. Level 1 keeps weights in host memory and forgets what sequences
  // have; level 2 gives back weights as well.
  Result<void> sleep(int32_t level, const RestWish& wish);
  // It is awake when both parts are asked for, at once or one after the other.
  // kInvalidArgument: there are no weights to wake up with.
  Result<void> wake_up(bool weights, bool sequences);
  Result<void> pause(const RestWish& wish);
  Result<void> resume();
  struct Updated {
    int64_t num_tensors = 0;
    std::string identity;
  };
  // Where it is awake it rests for the change, as wished, and goes on.
  Result<Updated> update(const std::string& path, const std::string& version, const RestWish& wish);

 private:
  Result<Residence*> residence(Result<void> (Residence::*can)() const) const;
  void go_on();

  engine::Engine& engine_;
  Residence* const residence_;
  std::atomic<State> state_{State::kAwake};
  std::atomic<int32_t> level_{0};
  std::atomic<uint64_t> num_updates_{0};

  // The changing thread's.
  bool has_weights_ = true;
  bool weights_awake_ = true;
  bool sequences_awake_ = true;
  bool keeps_cache_ = false;             // it pauses with what is cached
  std::optional<std::string> identity_;  // to go on under, where weights were replaced at rest

  std::mutex mutex_;
  bool is_busy_ = false;
  bool is_stopped_ = false;
  std::thread thread_;
};

}  // namespace rudder::server
