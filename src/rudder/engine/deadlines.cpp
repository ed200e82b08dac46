#include "rudder/engine/deadlines.h"

#include <algorithm>

namespace rudder::engine {

bool Deadlines::waits(const RequestTable& requests, RequestId id) {
  const OpenRequest* request = requests.find(id);
  return request != nullptr && !request->first_planned_us;
}

std::optional<RequestId> Deadlines::pop_missed(const RequestTable& requests, int64_t now_us) {
  if (deadlines_.size() > most_) {
    std::erase_if(deadlines_, [&](const auto& entry) { return !waits(requests, entry.second); });
    most_ = std::max<size_t>(64, 2 * deadlines_.size());
  }
  while (!deadlines_.empty() && deadlines_.begin()->first <= now_us) {
    const RequestId id = deadlines_.begin()->second;
    deadlines_.erase(deadlines_.begin());
    if (waits(requests, id)) return id;
  }
  return std::nullopt;
}

}  // namespace rudder::engine
