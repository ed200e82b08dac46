#include "rudder/server/http/plain_file.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

namespace rudder::server {

Result<void> check_plain_file(const std::string& path, const std::string& setting) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) {
    return fail(ErrorCode::kIo, fmt::format("cannot read {}: {}", path, std::strerror(errno)),
                setting);
  }
  const bool is_given = path.starts_with("/dev/fd/") || path.starts_with("/proc/self/fd/");
  if (S_ISREG(status.st_mode) || (is_given && S_ISFIFO(status.st_mode))) return {};
  return fail(ErrorCode::kCorruptFile, fmt::format("{} is not a regular file", path), setting);
}

}  // namespace rudder::server
