#include "rudder/base/starvation.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace rudder {
namespace {

// Empty where there is none: the thread has ended.
std::string read_small_file(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  std::string text(512, '\0');
  const ssize_t size = read(file, text.data(), text.size());
  close(file);
  text.resize(size > 0 ? static_cast<size_t>(size) : 0);
  return text;
}

// "7 (a name) R 1 ...": the name may have any character.
bool is_ready(std::string_view stat) {
  const size_t name_end = stat.rfind(") ");
  return name_end != std::string_view::npos && stat.substr(name_end + 2).starts_with('R');
}

std::optional<int64_t> to_number(std::string_view text) {
  int64_t number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  return read.ec == std::errc() ? std::optional(number) : std::nullopt;
}

}  // namespace

bool Starvation::look() {
  const auto now = std::chrono::steady_clock::now();
  const int64_t passed_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(now - std::exchange(last_, now)).count();
  std::map<int32_t, int64_t> run_ns;
  bool starves = false;
  DIR* const threads = opendir("/proc/self/task");
  if (threads == nullptr) return false;
  while (const dirent* const entry = readdir(threads)) {
    const std::optional<int64_t> id = to_number(entry->d_name);
    if (!id || *id == gettid()) continue;
    const std::string folder = fmt::format("/proc/self/task/{}/", *id);
    const std::optional<int64_t> ran = to_number(read_small_file(folder + "schedstat"));
    if (!ran) continue;
    const auto thread = static_cast<int32_t>(*id);
    run_ns[thread] = *ran;
    const auto before = run_ns_.find(thread);
    if (before == run_ns_.end() || *ran - before->second >= passed_ns / 2) continue;
    starves = starves || is_ready(read_small_file(folder + "stat"));
  }
  closedir(threads);
  run_ns_ = std::move(run_ns);
  return starves;
}

}  // namespace rudder
