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
  return look({.now_us = SteadyClock().now_us(),
               .cpu_us = process_cpu_us(),
               .major_faults = usage.ru_majflt,
               .starves = starvation_.look()});
}

bool Exertion::look(const Readings& readings) {
  const Readings last = std::exchange(last_, readings);
  const bool computes = readings.cpu_us - last.cpu_us >= (readings.now_us - last.now_us) / 2;
  const bool reads = readings.major_faults != last.major_faults;
  return readings.starves || computes || reads;
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
