#include "rudder/server/http/descriptors.h"

#include <sys/resource.h>

#include <algorithm>

#include "rudder/server/admin/process_stats.h"

namespace rudder::server {

int32_t make_descriptor_room(int32_t wanted, int32_t reserve) {
  const int64_t taken = read_process_stats().open_fds + reserve;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  const auto needed = static_cast<rlim_t>(taken + wanted);
  if (limit.rlim_cur < needed) {
    limit.rlim_cur = std::min(needed, limit.rlim_max);
    ::setrlimit(RLIMIT_NOFILE, &limit);
    ::getrlimit(RLIMIT_NOFILE, &limit);
  }
  const auto room = static_cast<int64_t>(std::min(limit.rlim_cur, needed)) - taken;
  return static_cast<int32_t>(std::clamp<int64_t>(room, 1, wanted));
}

}  // namespace rudder::server
