#include "rudder/engine/service_rate.h"

#include <algorithm>
#include <cmath>

namespace rudder::engine {
namespace {

// Of time in which something waits: what is older counts for less than a third.
constexpr double kMemoryUs = 10e6;

}  // namespace

void ServiceRate::note_started(const QueueLoad& load, int64_t now_us) {
  const auto passed_us = static_cast<double>(std::max<int64_t>(0, now_us - since_us_));
  const double kept = std::exp(-passed_us / kMemoryUs);
  us_ = kept * us_ + passed_us;
  requests_ = kept * requests_ + static_cast<double>(load.requests);
  tokens_ = kept * tokens_ + static_cast<double>(load.tokens);
  since_us_ = now_us;
}

int64_t ServiceRate::time_for(const QueueLoad& load, bool is_busy, int64_t now_us) const {
  if (requests_ <= 0) return 0;
  // Since the last one began, nothing did.
  const int64_t silent_us = is_busy ? std::max<int64_t>(0, now_us - since_us_) : 0;
  const double us = us_ + static_cast<double>(silent_us);
  const double by_requests = static_cast<double>(load.requests) / requests_;
  const double by_tokens = tokens_ > 0 ? static_cast<double>(load.tokens) / tokens_ : 0;
  return static_cast<int64_t>(us * std::max(by_requests, by_tokens));
}

int32_t retry_after_s(int64_t wait_us, double bound_s) {
  const double wait_s = static_cast<double>(wait_us) * 1e-6;
  const double half_s = wait_s / 2;
  const double seconds = bound_s > 0 ? std::max(half_s, wait_s - bound_s / 2) : half_s;
  return static_cast<int32_t>(std::clamp(std::ceil(seconds), 1.0, double{kMaxRetryAfter}));
}

}  // namespace rudder::engine
