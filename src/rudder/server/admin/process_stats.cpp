#include "rudder/server/admin/process_stats.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

namespace rudder::server {
namespace {

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

// Field 22 of /proc/self/stat, ticks since boot, against the clock since boot.
double read_start_time() {
  std::ifstream file("/proc/self/stat");
  const std::string line((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t name_end = line.rfind(')');  // the name may hold spaces
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(line.substr(name_end + 1));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  std::istringstream number(field);
  double ticks = 0;
  number >> ticks;
  timespec since_boot{};
  clock_gettime(CLOCK_BOOTTIME, &since_boot);
  const double age =
      static_cast<double>(since_boot.tv_sec) - ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
  return static_cast<double>(std::time(nullptr)) - age;
}

// Since Linux 6.2 the folder's size is the count; before, the entries are counted.
int64_t count_open_fds() {
  struct stat folder {};
  if (::stat("/proc/self/fd", &folder) == 0 && folder.st_size > 0) return folder.st_size;
  int64_t count = 0;
  std::error_code ec;
  for (std::filesystem::directory_iterator it("/proc/self/fd", ec), end; !ec && it != end;
       it.increment(ec)) {
    ++count;
  }
  return count;
}

}  // namespace

ProcessStats read_process_stats() {
  ProcessStats stats;
  std::ifstream statm("/proc/self/statm");
  int64_t total_pages = 0;
  int64_t resident_pages = 0;
  if (statm >> total_pages >> resident_pages) {
    stats.resident_bytes = resident_pages * sysconf(_SC_PAGESIZE);
  }
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) == 0) {
    stats.cpu_seconds = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) stats.max_fds = static_cast<int64_t>(limit.rlim_cur);
  stats.open_fds = count_open_fds();
  static const double start_time = read_start_time();
  stats.start_time_seconds = start_time;
  return stats;
}

}  // namespace rudder::server
