#include "rudder/hub/file_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace rudder::hub {
namespace {

tl::unexpected<Error> lock_error(const std::string& path) {
  return fail(ErrorCode::kIo, fmt::format("cannot lock it: {}", std::strerror(errno)), path);
}

// Some versions of the tools remove a lock's file when they let go of it: then what is locked here
// is a file that nobody else finds.
bool is_still_at(int fd, const std::string& path) {
  struct stat held = {};
  struct stat there = {};
  return fstat(fd, &held) == 0 && stat(path.c_str(), &there) == 0 && held.st_dev == there.st_dev &&
         held.st_ino == there.st_ino;
}

int flock_through_signals(int fd, int operation) {
  while (true) {
    const int done = flock(fd, operation);
    if (done == 0 || errno != EINTR) return done;
  }
}

// The locked file, or -1 with errno EWOULDBLOCK where it is held and `waits` is false.
int open_locked(const std::string& path, bool waits, const std::function<void()>& on_wait) {
  bool has_told = false;
  while (true) {
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0664);
    if (fd < 0) return -1;
    int locked = flock_through_signals(fd, LOCK_EX | LOCK_NB);
    if (locked != 0 && errno == EWOULDBLOCK && waits) {
      if (!has_told && on_wait) on_wait();
      has_told = true;
      locked = flock_through_signals(fd, LOCK_EX);
    }
    if (locked == 0 && is_still_at(fd, path)) return fd;
    const int error = errno;
    close(fd);
    errno = error;
    if (locked != 0) return -1;
  }
}

Result<int> lock_file(const std::string& path, bool waits, const std::function<void()>& on_wait) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error) {
    return fail(ErrorCode::kIo, fmt::format("cannot make its folder: {}", error.message()), path);
  }
  const int fd = open_locked(path, waits, on_wait);
  if (fd >= 0) return fd;
  if (errno == EWOULDBLOCK) return fail(ErrorCode::kUnavailable, "another process holds it", path);
  return lock_error(path);
}

}  // namespace

Result<FileLock> FileLock::acquire(const std::string& path, const std::function<void()>& on_wait) {
  RUDDER_TRY(const int fd, lock_file(path, true, on_wait));
  return FileLock(fd);
}

Result<FileLock> FileLock::try_acquire(const std::string& path) {
  RUDDER_TRY(const int fd, lock_file(path, false, {}));
  return FileLock(fd);
}

FileLock::FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileLock::~FileLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace rudder::hub
