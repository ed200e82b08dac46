// What --kv-events-config asks for: a JSON object with vLLM's keys. Read by apps/ on the main
// thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "rudder/base/result.h"

namespace rudder::fleet {

struct EventsConfig {
  std::string endpoint = "tcp://127.0.0.1:5557";
  std::string replay_endpoint = {};  // empty: no replay
  int32_t buffer_steps = 100'000;
  int32_t hwm = 10'000;  // batches that wait for one subscriber
  int32_t max_queue_size = 100'000;
  std::string topic = {};
};

// Absent: no events, where `text` is empty, or turns them off (enable_kv_cache_events false, or the
// publisher "null"). kInvalidArgument, where = the key: one that is not known, of another type or
// out of range, or an endpoint that no other process could reach.
Result<std::optional<EventsConfig>> read_events_config(const std::string& text);

// What replica `rank` of a server publishes with: endpoints of its own, as vLLM makes
// them: TCP ports are that many higher, paths get "_dpRANK" behind them; port 0, by which the
// system picks one, stays. kInvalidArgument, where = the key: there is no such port.
Result<EventsConfig> events_of_rank(EventsConfig config, int32_t rank);

// Whether the publisher binds the endpoint, as vLLM decides it, or connects to it: it binds to a
// wildcard, to a path and to an address of this machine's loopback written in numbers.
bool is_bound(const std::string& endpoint);

}  // namespace rudder::fleet
