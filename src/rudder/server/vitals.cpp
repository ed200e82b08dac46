#include "rudder/server/vitals.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "rudder/base/clock.h"
#include "rudder/base/cpu_time.h"

namespace rudder::server {

bool Exertion::look() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const int64_t now_us = SteadyClock().now_us();
  const int64_t cpu_us = process_cpu_us();
  const int64_t passed_us = now_us - std::exchange(looked_us_, now_us);
  const bool computes = cpu_us - std::exchange(cpu_us_, cpu_us) >= passed_us / 2;
  const bool reads = std::exchange(major_faults_, usage.ru_majflt) != usage.ru_majflt;
  return starvation_.look() || computes || reads;
}

void Vitals::add(std::string part, std::function<bool()> is_still) {
  parts_.push_back({.name = std::move(part), .is_still = std::move(is_still)});
}

Result<void> Vitals::tick(const std::function<bool()>& exerts) {
  std::optional<bool> exerted;
  for (Part& part : parts_) {
    if (!part.is_still()) {
      part.still = part.exerted = 0;
      continue;
    }
    if (!exerted) exerted = exerts();
    ++part.still;
    part.exerted += *exerted ? 1 : 0;
    if (part.still - part.exerted < kPatience && part.still < kExertedPatience) continue;
    return fail(ErrorCode::kInternal, fmt::format("{} stands still", part.name));
  }
  return {};
}

}  // namespace rudder::server
