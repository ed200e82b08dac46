#include "rudder/server/admin/model_rest.h"

#include <fmt/format.h>

#include <utility>

#include "rudder/base/contain.h"
#include "rudder/base/heap.h"
#include "rudder/base/log.h"

namespace rudder::server {
namespace {

Error asleep(int32_t level) {
  return {ErrorCode::kUnavailable,
          fmt::format("the model is asleep (level {}): POST /wake_up wakes it", level), ""};
}

Error no_residence() {
  return {ErrorCode::kNotFound,
          "this needs a server that was started with --enable-sleep-mode or --weights-root", ""};
}

Error ended(const char* why) {
  return {ErrorCode::kUnavailable, fmt::format("the request was ended, since {}", why), ""};
}

}  // namespace

bool ModelRest::run(std::function<void()> change, std::function<void()> tell) {
  const std::lock_guard lock(mutex_);
  if (is_busy_ || is_stopped_) return false;
  if (thread_.joinable()) thread_.join();  // it has ended
  is_busy_ = true;
  thread_ = std::thread([this, change = std::move(change), tell = std::move(tell)] {
    if (const Result<void> done = contain(change); !done) {
      log_error("a change of the model: {}", done.error().to_string());
    }
    {
      const std::lock_guard done_lock(mutex_);
      is_busy_ = false;
    }
    if (tell) tell();
  });
  return true;
}

void ModelRest::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

Result<Residence*> ModelRest::residence(Result<void> (Residence::*can)() const) const {
  if (residence_ == nullptr) return tl::unexpected<Error>(no_residence());
  RUDDER_TRY_VOID((residence_->*can)());
  return residence_;
}

Result<void> ModelRest::sleep(int32_t level, const RestWish& wish) {
  RUDDER_TRY(Residence* const residence, this->residence(&Residence::can_sleep));
  if (state() == State::kAsleep) return tl::unexpected<Error>(asleep(this->level()));
  RUDDER_TRY_VOID(engine_.rest(
      {.mode = wish.mode, .refusal = asleep(level), .ended = ended("the model goes to sleep")},
      wish.timeout_us));
  level_ = level;
  state_ = State::kAsleep;
  residence->give_back_sequences();
  if (level == 2) residence->give_back_weights();
  has_weights_ = level == 1;
  weights_awake_ = sequences_awake_ = false;
  return_freed_memory();
  log_info("the model sleeps, level {}", level);
  return {};
}

Result<void> ModelRest::wake_up(bool weights, bool sequences) {
  if (state() != State::kAsleep) return {};
  weights = weights || weights_awake_;
  sequences = sequences || sequences_awake_;
  if (weights && sequences && !has_weights_) {
    return fail(ErrorCode::kInvalidArgument,
                "it sleeps without weights (level 2): POST /v1/weights/update brings some", "tags");
  }
  weights_awake_ = weights;
  sequences_awake_ = sequences;
  if (!weights || !sequences) return {};
  go_on();
  log_info("the model is awake");
  return {};
}

Result<void> ModelRest::pause(const RestWish& wish) {
  if (residence_ == nullptr) return tl::unexpected<Error>(no_residence());
  if (state() == State::kAsleep) return tl::unexpected<Error>(asleep(level()));
  if (state() == State::kPaused && (wish.keeps_cache || !keeps_cache_)) return {};
  const engine::RestMode mode =
      state() == State::kPaused ? engine::RestMode::kKeep : wish.mode;  // the cache alone goes
  RUDDER_TRY_VOID(engine_.rest(
      {.mode = mode, .ended = ended("the model pauses"), .keeps_cache = wish.keeps_cache},
      wish.timeout_us));
  keeps_cache_ = wish.keeps_cache;
  state_ = State::kPaused;
  log_info("the model pauses");
  return {};
}

Result<void> ModelRest::resume() {
  if (state() == State::kAsleep) return tl::unexpected<Error>(asleep(level()));
  if (state() == State::kPaused) go_on();
  return {};
}

// State first: whoever is let in then finds it awake.
void ModelRest::go_on() {
  state_ = State::kAwake;
  engine_.resume(std::exchange(identity_, std::nullopt));
}

Result<ModelRest::Updated> ModelRest::update(const std::string& path, const std::string& version,
                                             const RestWish& wish) {
  RUDDER_TRY(Residence* const residence, this->residence(&Residence::can_update));
  RUDDER_TRY(const std::unique_ptr<NewWeights> fresh, residence->read_weights(path, version));
  const bool was_awake = state() == State::kAwake;
  if (was_awake) {
    RUDDER_TRY_VOID(engine_.rest({.mode = wish.mode, .ended = ended("its weights are replaced")},
                                 wish.timeout_us));
  }
  fresh->put_in_place();
  has_weights_ = true;
  identity_ = fresh->identity();
  num_updates_.fetch_add(1, std::memory_order_relaxed);
  Updated updated{.num_tensors = fresh->num_tensors(), .identity = *identity_};
  if (was_awake) go_on();
  return_freed_memory();  // of those before
  log_info("weights replaced by those of {}: {} tensors", path, updated.num_tensors);
  return updated;
}

}  // namespace rudder::server
