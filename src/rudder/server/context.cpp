#include "rudder/server/context.h"

#include <chrono>

namespace rudder::server {

ApiError ServerContext::engine_error(const Error& error) const {
  ApiError api = to_api_error(error);
  if (error.code == ErrorCode::kOverloaded) api.retry_after_s = engine().retry_after_s();
  return api;
}

void Activity::begin() {
  std::lock_guard lock(mutex_);
  ++count_;
}

void Activity::end() {
  std::lock_guard lock(mutex_);
  if (--count_ == 0) changed_.notify_all();
}

int64_t Activity::count() const {
  std::lock_guard lock(mutex_);
  return count_;
}

bool Activity::wait_until_idle(int64_t timeout_us) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::microseconds(timeout_us),
                    [this] { return count_ == 0 || hurried_; });
  return count_ == 0;
}

void Activity::hurry() {
  std::lock_guard lock(mutex_);
  hurried_ = true;
  changed_.notify_all();
}

}  // namespace rudder::server
