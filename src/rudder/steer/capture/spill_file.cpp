#include "rudder/steer/capture/spill_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace rudder::steer::capture {
namespace {

bool write_at(int fd, uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return true;
}

bool read_at(int fd, uint64_t offset, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return true;
}

}  // namespace

Result<std::unique_ptr<SpillFile>> SpillFile::create(const std::string& folder, int64_t max_bytes) {
  std::string name = folder + "/rudder-spill-XXXXXX";
  const int fd = ::mkostemp(name.data(), O_CLOEXEC);
  if (fd < 0) {
    return fail(ErrorCode::kIo, fmt::format("cannot make a file in it: {}", std::strerror(errno)),
                folder);
  }
  ::unlink(name.c_str());
  return std::unique_ptr<SpillFile>(
      new SpillFile(fd, folder, static_cast<uint64_t>(std::max<int64_t>(max_bytes, 1))));
}

SpillFile::~SpillFile() {
  ::close(fd_);
}

bool SpillFile::write(std::span<const std::byte> bytes) {
  uint64_t begin = 0;
  {
    std::lock_guard lock(mutex_);
    if (bytes.size() > size_ - (written_ - read_)) return false;
    begin = written_;
  }
  const uint64_t offset = begin % size_;
  const size_t first = std::min<size_t>(bytes.size(), size_ - offset);
  if (!write_at(fd_, offset, bytes.first(first)) || !write_at(fd_, 0, bytes.subspan(first))) {
    return false;
  }
  std::lock_guard lock(mutex_);
  written_ += bytes.size();
  return true;
}

Result<void> SpillFile::read(std::span<std::byte> out) {
  uint64_t begin = 0;
  {
    std::lock_guard lock(mutex_);
    begin = read_;
  }
  const uint64_t offset = begin % size_;
  const size_t first = std::min<size_t>(out.size(), size_ - offset);
  const bool ok = read_at(fd_, offset, out.first(first)) && read_at(fd_, 0, out.subspan(first));
  const int error = errno;
  std::lock_guard lock(mutex_);
  read_ += out.size();
  if (ok) return {};
  return fail(ErrorCode::kIo, fmt::format("cannot read spilled rows: {}", std::strerror(error)),
              folder_);
}

int64_t SpillFile::held_bytes() const {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(written_ - read_);
}

}  // namespace rudder::steer::capture
