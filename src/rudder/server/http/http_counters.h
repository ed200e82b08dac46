// HttpCounters: the counters of the HTTP side, for /metrics. Labels come from closed sets (the
// route table, classes of status), so no client can make the exposition grow. Any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "rudder/server/http/route_table.h"

namespace rudder::server {

struct HttpCounters {
  // [route, or kMaxRoutes where none matched][status / 100 - 1]
  std::array<std::array<std::atomic<uint64_t>, 5>, kMaxRoutes + 1> responses{};
  std::atomic<uint64_t> connections_accepted{0};
  std::atomic<uint64_t> connections_refused{0};  // too many were open
  std::atomic<int64_t> connections_open{0};
  std::atomic<uint64_t> client_disconnects{0};  // before the answer was complete
  std::atomic<uint64_t> slow_readers{0};        // cancelled for not reading
  std::atomic<uint64_t> malformed_requests{0};  // refused by the HTTP parser

  void count_response(const Route* route, int status);
};

}  // namespace rudder::server
