// Whether limits leave room for what any start takes. It is tried: limits are of a user, of a group
// of processes and of this one, and count what others have.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <exception>
#include <iterator>
#include <latch>
#include <thread>
#include <vector>

#include "doctor/findings.h"

namespace rudder::apps {
namespace {

constexpr int64_t kLeastDescriptors = 7;  // beside those of standard streams

// Of so many threads at a time.
int64_t threads_that_begin(int64_t wanted) {
  std::vector<std::thread> threads;
  std::latch end(1);
  try {
    threads.reserve(static_cast<size_t>(wanted));
    while (std::ssize(threads) < wanted) threads.emplace_back([&end] { end.wait(); });
  } catch (const std::exception&) {  // there is no room for more
  }
  end.count_down();
  for (std::thread& thread : threads) thread.join();
  return std::ssize(threads);
}

int64_t descriptors_that_open(int64_t wanted) {
  std::vector<int> open_ones;
  open_ones.reserve(static_cast<size_t>(wanted));
  while (std::ssize(open_ones) < wanted) {
    const int descriptor = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) break;
    open_ones.push_back(descriptor);
  }
  for (const int descriptor : open_ones) close(descriptor);
  return std::ssize(open_ones);
}

}  // namespace

void check_room(int64_t threads, Findings& findings) {
  if (const int64_t begun = threads_that_begin(threads); begun < threads) {
    findings.push_back({Verdict::kFails, "threads",
                        fmt::format("{} begin of the {} that a start takes: `ulimit -u`, `ulimit "
                                    "-v` or the control group bounds them",
                                    begun, threads)});
  }
  if (const int64_t opened = descriptors_that_open(kLeastDescriptors); opened < kLeastDescriptors) {
    findings.push_back({Verdict::kFails, "descriptors",
                        fmt::format("{} open of the {} that a start takes at least: `ulimit -n`",
                                    opened, kLeastDescriptors)});
  }
}

void check_addresses(int64_t bytes, Findings& findings) {
  const auto size = static_cast<size_t>(bytes);
  void* const room =
      mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room != MAP_FAILED) {
    munmap(room, size);
    return;
  }
  findings.push_back(
      {Verdict::kFails, "addresses",
       fmt::format("a start takes {:.1f} GiB of them, which `ulimit -v` does not leave",
                   static_cast<double>(bytes) / (1 << 30))});
}

}  // namespace rudder::apps
