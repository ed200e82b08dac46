// Log lines about requests: one when a request ends, one when it arrives (if enabled), and every
// ten seconds while there is work a line with rates and occupancy, in the form that users of vLLM
// know.
#pragma once

#include <cstdint>
#include <string_view>

#include "rudder/engine/stats.h"
#include "rudder/server/request/generation_request.h"

namespace rudder::server {

struct RequestEnd {
  std::string_view request_id;
  std::string_view path;
  int status = 0;
  std::string_view outcome;
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;
  int32_t completion_tokens = 0;
  int64_t received_us = 0;
  int64_t first_token_us = 0;  // 0: there was none
  int64_t ended_us = 0;
};

void log_request_end(const RequestEnd& end);
void log_request_start(std::string_view request_id, const GenerationRequest& request);

// Remembers the counters between two lines. One thread.
class StatsLog {
 public:
  // Writes a line when something ran since the last call or runs now.
  void write(const engine::EngineStats& stats, double seconds_since_last);

 private:
  uint64_t prompt_tokens_ = 0;
  uint64_t generation_tokens_ = 0;
  uint64_t prefix_queries_ = 0;
  uint64_t prefix_hits_ = 0;
};

}  // namespace rudder::server
