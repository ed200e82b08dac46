// HttpCounters: the counters of the HTTP side, for /metrics. Labels come from closed sets (the
// route table, classes of status), so no client can make the exposition grow. Any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "rudder/server/http/route_table.h"

namespace rudder::server {

// Seconds: short enough to tell a refusal from an answer, and that is all.
inline constexpr std::array<double, 3> kDurationBounds = {0.1, 0.5, 1};

struct HttpCounters {
  struct Durations {
    std::array<std::atomic<uint64_t>, kDurationBounds.size() + 1> counts{};
    std::atomic<uint64_t> sum_us{0};
  };

  // [route, or kMaxRoutes where none matched][status / 100 - 1]
  std::array<std::array<std::atomic<uint64_t>, 5>, kMaxRoutes + 1> responses{};
  std::array<Durations, kMaxRoutes + 1> durations{};
  std::atomic<uint64_t> connections_accepted{0};
  std::atomic<uint64_t> connections_refused{0};  // too many were open
  std::atomic<int64_t> connections_open{0};
  std::atomic<uint64_t> client_disconnects{0};  // before the answer was complete
  std::atomic<uint64_t> slow_readers{0};        // cancelled for not reading
  std::atomic<uint64_t> malformed_requests{0};  // refused by the HTTP parser

  void count_response(const Route* route, int status);
  // From the header of a request to the end of its answer, or of its connection.
  void count_duration(const Route* route, int64_t duration_us);
};

}  // namespace rudder::server
