// TokenRate: tokens a second between the times that somebody asks. Any thread.
#pragma once

#include <cstdint>
#include <mutex>

namespace rudder::server {

class TokenRate {
 public:
  // Since the last time that was at least half a second ago; 0 the first time.
  double at(int64_t now_us, uint64_t tokens) {
    constexpr int64_t kLeastUs = 500'000;
    const std::lock_guard lock(mutex_);
    const int64_t since_us = now_us - last_us_;
    if (last_us_ != 0 && since_us < kLeastUs) return rate_;
    if (last_us_ != 0) {
      rate_ = static_cast<double>(tokens - last_tokens_) * 1e6 / static_cast<double>(since_us);
    }
    last_us_ = now_us;
    last_tokens_ = tokens;
    return rate_;
  }

 private:
  std::mutex mutex_;
  int64_t last_us_ = 0;
  uint64_t last_tokens_ = 0;
  double rate_ = 0;
};

}  // namespace rudder::server
