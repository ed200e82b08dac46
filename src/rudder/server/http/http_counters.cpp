#include "rudder/server/http/http_counters.h"

#include <algorithm>

namespace rudder::server {
namespace {

size_t row_of(const Route* route) {
  return route == nullptr ? kMaxRoutes : static_cast<size_t>(route - routes().data());
}

}  // namespace

void HttpCounters::count_response(const Route* route, int status) {
  const size_t column = static_cast<size_t>(std::clamp(status / 100, 1, 5) - 1);
  responses[row_of(route)][column].fetch_add(1, std::memory_order_relaxed);
}

void HttpCounters::count_duration(const Route* route, int64_t duration_us) {
  constexpr double kMicro = 1e-6;
  const int64_t us = std::max<int64_t>(duration_us, 0);
  const auto bucket = std::lower_bound(kDurationBounds.begin(), kDurationBounds.end(),
                                       static_cast<double>(us) * kMicro);
  Durations& row = durations[row_of(route)];
  row.counts[static_cast<size_t>(bucket - kDurationBounds.begin())].fetch_add(
      1, std::memory_order_relaxed);
  row.sum_us.fetch_add(static_cast<uint64_t>(us), std::memory_order_relaxed);
}

}  // namespace rudder::server
