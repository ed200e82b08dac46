// Deadlines: until when requests that wait must have begun to run. Owned by EngineCore; the engine
// thread's alone.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <utility>

#include "rudder/engine/request_table.h"

namespace rudder::engine {

class Deadlines {
 public:
  void add(RequestId id, int64_t at_us) { deadlines_.emplace(at_us, id); }
  // One whose deadline has passed, and no longer here; of what has begun or ended nothing is said.
  std::optional<RequestId> pop_missed(const RequestTable& requests, int64_t now_us);

 private:
  static bool waits(const RequestTable& requests, RequestId id);

  std::set<std::pair<int64_t, RequestId>> deadlines_;
  size_t most_ = 64;  // past it, those of requests that no longer wait are dropped
};

}  // namespace rudder::engine
