#include <fmt/format.h>
#include <sys/resource.h>

#include <string>

#include "doctor/findings.h"
#include "rudder/base/thread_pool.h"
#include "rudder/cpu/host_memory.h"
#include "rudder/cpu/isa.h"

namespace rudder::apps {
namespace {

constexpr rlim_t kFewDescriptors = 4096;
constexpr int64_t kLittleMemory = int64_t{1} << 30;

double gib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 30);
}

void check_memory(Findings& findings) {
  const int64_t available = cpu::available_host_memory();
  if (available == 0) {
    findings.push_back({Verdict::kNote, "memory", "neither /proc nor /sys says how much is free"});
    return;
  }
  const bool is_little = available < kLittleMemory;
  findings.push_back({is_little ? Verdict::kNote : Verdict::kFine, "memory",
                      fmt::format("{:.1f} GiB available to this process{}", gib(available),
                                  is_little ? ": room for very small models alone" : "")});
}

void check_limits(Findings& findings) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    const bool is_few = limit.rlim_max != RLIM_INFINITY && limit.rlim_max < kFewDescriptors;
    findings.push_back(
        {is_few ? Verdict::kNote : Verdict::kFine, "descriptors",
         limit.rlim_max == RLIM_INFINITY
             ? std::string("no limit")
             : fmt::format("{} at most{}", limit.rlim_max,
                           is_few
                               ? ", and each connection takes one: raise it with `ulimit -Hn` or "
                                 "LimitNOFILE="
                               : "")});
  }
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    findings.push_back({Verdict::kNote, "addresses",
                        fmt::format("bounded to {:.1f} GiB (`ulimit -v`): weights are mapped, so a "
                                    "model larger than that does not load",
                                    gib(static_cast<int64_t>(limit.rlim_cur)))});
  }
  constexpr rlim_t kFewThreads = 512;
  if (getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur < kFewThreads) {
    findings.push_back({Verdict::kNote, "threads",
                        fmt::format("{} of this user at most (`ulimit -u`)", limit.rlim_cur)});
  }
}

}  // namespace

void check_machine(Findings& findings) {
  const cpu::Isa best = cpu::available_isas().back();
  const bool is_slow = best == cpu::Isa::kPortable;
  findings.push_back({is_slow ? Verdict::kNote : Verdict::kFine, "cpu",
                      fmt::format("{} cores, instruction set {}{}", usable_cores(),
                                  cpu::isa_name(best), is_slow ? ", which is slow" : "")});
  check_memory(findings);
  check_limits(findings);
}

}  // namespace rudder::apps
