#include "rudder/server/idle_trim.h"

namespace rudder::server {

bool IdleTrim::tick(int64_t cpu_us) {
  const bool quiet = cpu_us - last_us_ <= kQuietUs;
  last_us_ = cpu_us;
  if (!quiet || cpu_us - trimmed_us_ < kWorkUs) return false;
  trimmed_us_ = cpu_us;
  return true;
}

}  // namespace rudder::server
