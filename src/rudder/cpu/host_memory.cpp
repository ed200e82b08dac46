#include "rudder/cpu/host_memory.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>

namespace rudder::cpu {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

std::optional<std::string> read_file(const std::string& path) {
  std::ifstream in(path);
  if (!in) return std::nullopt;
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// The number at the start of `text`; "max" and anything else that is no number is no limit.
int64_t leading_number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value > static_cast<uint64_t>(kUnlimited)) return kUnlimited;
  return static_cast<int64_t>(value);
}

int64_t read_number(const std::string& path) {
  const auto text = read_file(path);
  return text ? leading_number(*text) : kUnlimited;
}

// "Name:   123 kB" of a /proc or memory.stat style file, or "name 123".
std::optional<int64_t> field(const std::string& text, std::string_view name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.size() <= name.size() || !line.starts_with(name)) continue;
    const size_t digits = line.find_first_of("0123456789", name.size());
    if (digits == std::string::npos) return std::nullopt;
    return leading_number(std::string_view(line).substr(digits));
  }
  return std::nullopt;
}

// The memory that a control group leaves: its limit minus its usage, without droppable page cache.
int64_t group_available(const std::string& folder, const char* limit_file, const char* usage_file,
                        std::string_view inactive_field) {
  const int64_t limit = read_number(folder + limit_file);
  const int64_t usage = read_number(folder + usage_file);
  if (limit == kUnlimited || usage == kUnlimited) return kUnlimited;
  const auto stat = read_file(folder + "/memory.stat");
  const int64_t droppable = stat ? field(*stat, inactive_field).value_or(0) : 0;
  return std::max<int64_t>(0, limit - std::max<int64_t>(0, usage - droppable));
}

// The least over the group and its parents; `path` starts with '/'.
int64_t hierarchy_available(const std::string& mount, std::string path, const char* limit_file,
                            const char* usage_file, std::string_view inactive_field) {
  int64_t least = kUnlimited;
  while (true) {
    if (path == "/") path.clear();
    least = std::min(least, group_available(mount + path, limit_file, usage_file, inactive_field));
    if (path.empty()) return least;
    path.resize(path.rfind('/'));
  }
}

// /proc/self/cgroup: "0::/path" (v2) and "9:memory:/path" (v1). A container often sees its own
// group at the root of the mount, in spite of the path: the parents cover that case.
int64_t control_group_available(const std::string& root) {
  int64_t least = kUnlimited;
  std::istringstream lines(read_file(root + "/proc/self/cgroup").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    const size_t second = line.find(':', line.find(':') + 1);
    if (second == std::string::npos || second + 1 >= line.size() || line[second + 1] != '/') {
      continue;
    }
    const std::string path = line.substr(second + 1);
    if (line.starts_with("0::")) {
      least = std::min(least, hierarchy_available(root + "/sys/fs/cgroup", path, "/memory.max",
                                                  "/memory.current", "inactive_file "));
    } else if (line.find(":memory:") != std::string::npos) {
      least = std::min(
          least, hierarchy_available(root + "/sys/fs/cgroup/memory", path, "/memory.limit_in_bytes",
                                     "/memory.usage_in_bytes", "total_inactive_file "));
    }
  }
  return least;
}

// Without page cache that could be dropped: the kernel says it in /proc alone.
int64_t free_memory() {
  struct sysinfo info = {};
  if (sysinfo(&info) != 0) return kUnlimited;
  return static_cast<int64_t>((info.freeram + info.bufferram) * info.mem_unit);
}

}  // namespace

int64_t available_host_memory(const std::string& root) {
  const auto meminfo = read_file(root + "/proc/meminfo");
  const auto kib = meminfo ? field(*meminfo, "MemAvailable:") : std::nullopt;
  const int64_t machine = kib ? *kib * 1024 : root.empty() ? free_memory() : kUnlimited;
  const int64_t available = std::min(machine, control_group_available(root));
  return available == kUnlimited ? 0 : available;
}

}  // namespace rudder::cpu
