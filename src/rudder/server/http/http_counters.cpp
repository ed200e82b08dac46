#include "rudder/server/http/http_counters.h"

#include <algorithm>

namespace rudder::server {

void HttpCounters::count_response(const Route* route, int status) {
  const size_t row = route == nullptr ? kMaxRoutes : static_cast<size_t>(route - routes().data());
  const size_t column = static_cast<size_t>(std::clamp(status / 100, 1, 5) - 1);
  responses[row][column].fetch_add(1, std::memory_order_relaxed);
}

}  // namespace rudder::server
